"""Builds the legend of the variants, whose entries are buttons that highlight them.

The figures draw highlighted variants in their colours and the others thin and grey.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from reports.figures.styles import Style
from reports.statistics.points import Point

MAX_ALL_HIGHLIGHTED = 6
"""If there are at most this many variants, all are highlighted initially."""
BEST_HIGHLIGHTED = 3
"""Otherwise this many of the best are highlighted, with the baseline, the winner and references."""
MAX_ALL_SHOWN = 16
"""If there are more variants than this, the others are hidden initially."""
LINES = {"solid": "", "dash": "5 3", "dashdot": "6 2 1.5 2", "dot": "1.5 2.5"}

MARKER_PATHS = {
    "circle": "M17 3a4 4 0 1 0 .01 0z",
    "square": "M13.5 3.5h7v7h-7z",
    "diamond": "M17 2l5 5-5 5-5-5z",
    "triangle-up": "M17 2.5l4.5 8h-9z",
    "triangle-down": "M17 11.5l4.5-8h-9z",
    "pentagon": "M17 2.5l4.7 3.4-1.8 5.6h-5.8l-1.8-5.6z",
    "hexagon": "M17 2l4.3 2.5v5l-4.3 2.5-4.3-2.5v-5z",
    "star": "M17 1.5l1.5 3.8 4 .3-3 2.6 1 4-3.5-2.2-3.5 2.2 1-4-3-2.6 4-.3z",
    "hourglass": "M13 3h8l-8 8h8z",
    "bowtie": "M13 3l8 8v-8l-8 8z",
    "cross": "M15.7 3h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "x": "M14 2.5l3 3 3-3 1.5 1.5-3 3 3 3-1.5 1.5-3-3-3 3-1.5-1.5 3-3-3-3z",
}
"""SVG paths of the markers, in a box of 34 by 14."""


class Legend(NamedTuple):
    entries: list[dict[str, Any]]
    """The highlighted variants first."""
    is_all_highlighted: bool
    hides_others: bool
    """Whether the variants that are not highlighted are hidden initially."""


def fastest(points: Sequence[Point], load: str | None) -> list[str]:
    """Return the variants at `load`, except references and unstable ones, the fastest first."""
    here = [
        p for p in points if p.load == load and not (p.reference or p.unstable or p.failed_gates)
    ]
    return [p.variant for p in sorted(here, key=lambda p: p.jct_mean_s.value)]


def highlighted(
    names: Collection[str], strong: Collection[str], best_first: Sequence[str]
) -> set[str]:
    """Return the variants to highlight initially: all if they are few, else `strong` and the first
    of `best_first`."""
    if len(names) <= MAX_ALL_HIGHLIGHTED:
        return {*names}
    return {*names} & {*strong, *best_first[:BEST_HIGHLIGHTED]}


def legend(
    names: Sequence[str],
    style: Mapping[str, Style],
    chosen: Collection[str],
    strong: Collection[str] = (),
) -> Legend:
    """Return the legend of `names`. `chosen` are highlighted initially; `strong` are the main
    variants of a report."""
    entries = [
        {
            "name": name,
            "slot": style[name].slot,
            "path": MARKER_PATHS[style[name].marker],
            "dashes": LINES[style[name].dash],
            "strong": name in strong,
            "highlighted": name in chosen,
        }
        for name in sorted(names, key=lambda name: name not in chosen)
    ]
    return Legend(entries, set(names) <= set(chosen), len(names) > MAX_ALL_SHOWN)
