"""Draws a comparison of two runs as one HTML page that needs no network.

In: a verdict. Out: the page, with a figure of the changes and the table of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from reports.compare.verdict import HEAD, Change, Verdict, headline, notes, row, shown
from reports.figures.drawing import Figure, Spec, Trace, dot, plain, short
from reports.figures.styles import Style, legend, styles
from reports.page.environment import write_page
from servers.basics.phrasing import counted
from servers.records.sweep import VariantRecord

COMPARISON = "compare.html"


def draw(verdict: Verdict, base: str, new: str, max_regression: float, out: Path) -> None:
    """Write the page. `base` and `new` are the names of the two runs."""
    names = list(dict.fromkeys(change.variant for change in verdict.changes))
    style = styles([VariantRecord(name=name) for name in names])
    different = shown(verdict.changes)
    figure = changes(verdict.changes, style) if different else None
    same = len(verdict.changes) - len(different)
    write_page(
        out,
        "compare.html.j2",
        context=verdict.context,
        base=base,
        new=new,
        headline=headline(verdict, max_regression),
        head=HEAD,
        rows=[row(change) for change in different],
        same=counted(same, "number") if same else "",
        figures=[figure] if figure else [],
        legend=legend(names, style, names),
        notes=[f"{note[:1].upper()}{note[1:]}" for note in notes(verdict)],
    )


def changes(found: Sequence[Change], style: Mapping[str, Style]) -> Figure | None:
    """Return a figure that shows first the load and metric with the largest difference; None if no
    change is a number."""
    by_key: dict[str, list[Change]] = {}
    numbers = [change for change in found if math.isfinite(change.change.value)]
    if not numbers:
        return None
    for change in numbers:
        by_key.setdefault(f"{change.load}, {change.metric}", []).append(change)
    largest = max(numbers, key=lambda c: (c.is_capacity, abs(c.change.value)))
    return Figure(
        "changes",
        "Change of each policy",
        {
            key: _spec(mine, style, [c for c in found if c.load == mine[0].load])
            for key, mine in by_key.items()
        },
        None,
        choice="change",
        first=f"{largest.load}, {largest.metric}",
        terms=("Capacity", "95% CI") if largest.is_capacity else ("JCT", "95% CI"),
    )


def _spec(found: Sequence[Change], style: Mapping[str, Style], of_load: Sequence[Change]) -> Spec:
    """`of_load`: all changes at this load, also those without a number, which the note names."""
    what = "capacity" if found[0].is_capacity else "time"
    lowest, highest = (how(found, key=lambda c: c.change.value) for how in (min, max))
    return {
        "data": [_dot(change, style[change.variant]) for change in found],
        "layout": {
            "xaxis": {"title": {"text": f"change of {what}, NEW ÷ BASE - 1"}, "tickformat": "+.1%"},
            "yaxis": {"automargin": True, "type": "category"},
        },
        "alt": (
            f"Dot plot, one dot per variant: change of {what}, from {lowest.change.value:+z.1%}"
            f" ({lowest.variant}) to {highest.change.value:+z.1%} ({highest.variant}). The table"
            " has all values."
        ),
        "value": "x",
        "rows": [[change.variant, plain(short(change.variant))] for change in found],
        "note": " ".join(
            [
                "More is better." if found[0].is_capacity else "Less is better.",
                *_without_number(of_load),
            ]
        ),
    }


def _without_number(found: Sequence[Change]) -> list[str]:
    """Name variants that are not drawn, or not with all seeds."""
    return [
        f"{change.variant}: {change.base} in BASE, {change.new} in NEW."
        for change in found
        if isinstance(change.new, str)
    ]


def _dot(change: Change, look: Style) -> Trace:
    value = change.change
    limits = f"95% CI {value.low:+z.1%} to {value.high:+z.1%}" if value.has_interval else "one seed"
    hover = f"<b>{plain(change.variant)}</b><br>{value.value:+z.1%}<br>{limits}"
    marker = {"symbol": look.marker, "size": 10}
    interval = value if value.has_interval else None
    return dot(change.variant, value.value, interval, look.colour, marker, hover)
