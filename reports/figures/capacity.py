"""Draws the capacity of each variant with its interval.

In: capacities over seeds. Out: a figure with a row per variant and its value, the highest on top.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from reports.figures.drawing import Figure, Spec, Trace, dot, number, plain
from reports.figures.styles import Style
from reports.numbers import short
from reports.statistics.bootstrap import Estimate, interval
from reports.statistics.capacities import VariantCapacity
from servers.basics.phrasing import times

TIE = "Bold: not distinguished from the highest, or equal to it within 3%."
Found = tuple[VariantCapacity, Estimate]


def capacity(
    capacities: Sequence[VariantCapacity],
    style: Mapping[str, Style],
    emphasised: Collection[str],
    meaning: str = "",
    winners: Collection[str] = (),
) -> Figure | None:
    """Return None if no capacity is a number. `meaning` explains sustained rates. The names of
    `winners` are bold."""
    found = [(each, value) for each in capacities if (value := each.load) is not None]
    if not found:
        return None
    order = sorted(found, key=lambda pair: -pair[1].value)
    rest = [each for each in capacities if each.load is None]
    axis = order[0][0].ladder.axis
    spec: Spec = {
        "data": [_dot(pair, style[pair[0].variant], emphasised) for pair in order],
        "layout": {
            "xaxis": {"title": {"text": axis}, "rangemode": "tozero"},
            "yaxis": {"automargin": True, "type": "category"},
        },
        "alt": _alt(order),
        "value": "x",
        "rows": [[each.variant, _label(each, value, winners)] for each, value in order],
        "complete": True,
    }
    seeds = max((len(each.loads) for each, value in order if value.is_shown), default=0)
    notes = [
        meaning,
        TIE if len(winners) > 1 else "",
        f"Bars: 95% intervals over {seeds} seeds." if seeds else "",
        "Without a number: " + ", ".join(f"{e.variant} ({e.kind})" for e in rest) if rest else "",
    ]
    if any(notes):
        spec["note"] = " ".join(filter(None, notes))
    return Figure(
        "capacity",
        f"{axis[0].upper()}{axis[1:]} that each policy sustains",
        {"": spec},
        None,
        terms=("Capacity", "SLO"),
    )


def _label(each: VariantCapacity, value: Estimate, winners: Collection[str]) -> str:
    name = plain(short(each.variant))
    if each.variant in winners:
        name = f"<b>{name}</b>"
    return f"{name}{' (reference)' if each.reference else ''}  {value.value:.3g}"


def _dot(pair: Found, look: Style, emphasised: Collection[str]) -> Trace:
    each, value = pair
    marker = {"symbol": look.marker, "size": 12 if each.variant in emphasised else 9}
    interval = value if value.is_shown else None
    x = number(value.value)
    return dot(each.variant, x, interval, look.colour, marker, _hover(each, value))


def _hover(each: VariantCapacity, value: Estimate) -> str:
    lines = [f"<b>{plain(each.variant)}</b>", each.text()]
    if value.is_shown:
        lines.append(f"95% CI {value.low:.3g} to {value.high:.3g}")
    if each.ratio is not None:
        lines.append(f"{times(each.ratio.value)} the baseline's ({interval(each.ratio)})")
    return "<br>".join(lines)


def _alt(order: Sequence[Found]) -> str:
    (highest, high), (lowest, low) = order[0], order[-1]
    return (
        f"Dot plot, one dot per variant: capacity in {highest.ladder.axis}, from {low.value:.3g}"
        f" ({lowest.variant}) to {high.value:.3g} ({highest.variant}). The table of capacities has"
        " all values."
    )
