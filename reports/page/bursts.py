"""Compares capacities after several bursts: how large a burst each scheduler recovers from.

In: the answer after each burst. Out: sentences, a table, and a figure of capacity against bursts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.answer.machines import OnMachine
from reports.figures.drawing import Figure, Spec, Trace, bars, line, number, plain
from reports.figures.styles import Style
from reports.loads import RATES
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import VariantCapacity, some_seeds
from reports.table import Table, TableCell, TableRow
from servers.basics.phrasing import counted, listed

Capacities = Mapping[int, VariantCapacity | None]
"""Of one variant, by burst in ascending order; None for a burst without a valid result."""


def by_variant(found: Sequence[OnMachine]) -> dict[str, Capacities]:
    """Return the variants in the order of the sweep."""
    bursts = {m.member.burst or 0: {c.variant: c for c in m.answer.capacities} for m in found}
    names = dict.fromkeys(name for own in bursts.values() for name in own)
    return {name: {n: bursts[n].get(name) for n in sorted(bursts)} for name in names}


def highest(found: Sequence[OnMachine]) -> str:
    """State which schedulers sustain most after which burst."""
    by_winners: dict[tuple[str, ...], list[str]] = {}
    for each in found:
        by_winners.setdefault(tuple(each.answer.winners), []).append(each.member.label)
    if list(by_winners) == [()]:
        return "No scheduler sustains any rate that was tried."
    if len(by_winners) == 1:
        return f"The highest capacity, whatever the burst: {listed(next(iter(by_winners)))}."
    each_best = [f"{listed(best) or 'none'} ({listed(of)})" for best, of in by_winners.items()]
    return f"The highest capacity: {'; '.join(each_best)}."


def recoveries(capacities: Mapping[str, Capacities], rate: float) -> str:
    """State from how large a burst each scheduler recovers at a rate."""
    largest = {name: recovered(own, rate) for name, own in capacities.items()}
    kinds: dict[int | None, list[str]] = {}
    for name, most in largest.items():
        kinds.setdefault(most, []).append(name)
    ordered = sorted(kinds, key=lambda most: -1 if most is None else most, reverse=True)
    each = [f"{_meets(most)} with {listed(kinds[most])}" for most in ordered]
    return f"{rate:g} jobs/s are sustained with every seed {'; '.join(each)}."


def _meets(largest: int | None) -> str:
    if largest is None:
        return "after none of these bursts"
    if not largest:
        return "without a burst only"
    return f"after bursts of up to {counted(largest, 'job')}"


def recovered(own: Capacities, rate: float) -> int | None:
    """Return the largest burst up to which the rate is sustained with all seeds, also after all
    smaller ones."""
    largest = None
    for burst, capacity in own.items():
        if capacity is None or not capacity.sustained_at(rate).is_all:
            break
        largest = burst
    return largest


def table(capacities: Mapping[str, Capacities], rates: Sequence[float]) -> Table:
    """Return the capacities by burst, and the largest burst that is recovered from at each rate."""
    bursts = list(next(iter(capacities.values()), {}))
    heads = ["Scheduler", *(counted(burst, "job") if burst else "no burst" for burst in bursts)]
    rows = [
        TableRow(
            name,
            [
                *map(_cell, own.values()),
                *(TableCell(_largest(own, rate)) for rate in rates),
            ],
            any(each is not None and each.reference for each in own.values()),
        )
        for name, own in capacities.items()
    ]
    return Table([*heads, *(f"largest burst at {rate:g} jobs/s" for rate in rates)], rows)


def _cell(each: VariantCapacity | None) -> TableCell:
    if each is None:
        return TableCell("–")
    if each.load is None:
        return TableCell(f"none{some_seeds(each.never)}" if each.never.seeds else "not found yet")
    value = each.load
    lines = (f"95% CI {value.low:.3g}–{value.high:.3g}",) if value.has_interval else ()
    return TableCell(f"{value.value:.3g}", lines=lines)


def _largest(own: Capacities, rate: float) -> str:
    largest = recovered(own, rate)
    return "–" if largest is None else f"{largest:,}"


def figure(capacities: Mapping[str, Capacities], style: Mapping[str, Style]) -> Figure | None:
    """Draw capacity against the burst, a line per variant; None without a number."""
    lines = [drawn for name, own in capacities.items() if (drawn := _line(name, own, style[name]))]
    if not lines:
        return None
    spec: Spec = {
        "data": lines,
        "layout": {
            "xaxis": {"title": {"text": "jobs that arrive together"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": f"capacity, {RATES.unit}"}, "rangemode": "tozero"},
        },
        "alt": "Line chart of capacity against the burst, a line per scheduler. The table has all "
        "values.",
        "value": "y",
        "labelled": True,
        "note": "At 0 no rate that was tried is sustained. There is no point if only some seeds "
        "sustain a rate.",
    }
    title = "Capacity against the burst"
    return Figure("bursts", title, {"": spec}, None, terms=("Capacity", "SLO"))


def _line(name: str, own: Capacities, look: Style) -> Trace | None:
    found = {burst: value for burst, each in own.items() if (value := _drawn(each)) is not None}
    if not found:
        return None
    values = list(found.values())
    drawn = line(
        *(list(found), [number(value.value) for value in values], look.colour, look.dash),
        variant=name,
        hover=f"<b>{plain(name)}</b><br>%{{x}} jobs: %{{y:.3g}} jobs/s",
    )
    drawn |= {"mode": "lines+markers", "marker": {"symbol": look.marker, "size": 7}}
    if all(value.has_interval for value in values):
        drawn["error_y"] = bars(*values)
    return drawn


def _drawn(each: VariantCapacity | None) -> Estimate | None:
    if each is None:
        return None
    return Estimate(0.0, 0.0, 0.0) if each.never.is_all else each.load
