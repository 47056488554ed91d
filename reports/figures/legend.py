"""Builds the legend of the variants, whose entries are buttons that hide and show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.figures.drawing import Style
from reports.statistics.points import Point

MAX_ALL_SHOWN = 16
"""If there are at most this many variants, all are shown at first."""
FASTEST_SHOWN = 8
"""Otherwise this many of the fastest are shown, and the bounds, the baseline and the winner."""

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
    "x": "M14 2.5l3 3 3-3 1.5 1.5-3 3 3 3-1.5 1.5-3-3-3 3-1.5-1.5 3-3-3-3z",
}
"""SVG paths of the markers, in a box of 34 by 14."""


def legend(
    points: Sequence[Point], style: Mapping[str, Style], strong: Sequence[str], load: str | None
) -> list[dict[str, Any]]:
    """Return the entries, with those shown at first in front. The fastest are those at `load`."""
    names = [name for name in style if any(p.variant == name for p in points)]
    bounds = {p.variant for p in points if p.bound}
    shown = set(names)
    if len(names) > MAX_ALL_SHOWN:
        here = sorted(
            (p for p in points if p.load == load and not p.unstable),
            key=lambda p: p.jct_mean_s.value,
        )
        shown = {*strong, *bounds, *(p.variant for p in here[:FASTEST_SHOWN])}
    return [
        {
            "name": name,
            "slot": style[name].slot,
            "path": MARKER_PATHS[style[name].marker],
            "dashes": {"solid": "", "dash": "5 3", "dot": "1.5 2.5"}[style[name].dash],
            "strong": name in strong,
            "shown": name in shown,
        }
        for name in sorted(names, key=lambda name: name not in shown)
    ]
