"""Computes the positions of an SVG drawing of live against virtual time, a panel per load.

The drawing needs no plotting library, which would enlarge the card from some kilobytes to
megabytes. Lengths are in units of the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from reports.fidelity.distance import PairedPoint
from reports.figures.drawing import short
from servers.basics.phrasing import seconds

WIDTH, ROW, TOP, BOTTOM, RIGHT = 520, 30, 18, 34, 66
PER_LETTER = 7.4
TICKS = 5


def dumbbells(points: Sequence[PairedPoint]) -> list[dict[str, Any]]:
    """Return a panel per load, with policies in order of live mean JCT, the best on top."""
    loads = dict.fromkeys(p.load for p in points)
    return [_panel([p for p in points if p.load == load]) for load in loads]


def _panel(points: Sequence[PairedPoint]) -> dict[str, Any]:
    points = sorted(points, key=lambda p: p.live_s)
    names = [short(p.variant) for p in points]
    left = round(PER_LETTER * max(map(len, names))) + 20
    marks, end = ticks(max(max(p.live_high_s, p.virtual_s) for p in points))
    scale = (WIDTH - left - RIGHT) / end

    def x(value_s: float) -> float:
        return round(left + scale * value_s, 1)

    rows = [
        {
            "name": name,
            "y": TOP + ROW * index,
            "live": x(p.live_s),
            "low": x(p.live_low_s),
            "high": x(p.live_high_s),
            "virtual": x(p.virtual_s),
            "error": f"{p.mean.value:+.1%}",
        }
        for index, (name, p) in enumerate(zip(names, points, strict=True))
    ]
    axis_y = TOP + ROW * len(points) - 8
    return {
        "load": points[0].load,
        "saturated": any(p.saturated for p in points),
        "width": WIDTH,
        "height": axis_y + BOTTOM - 8,
        "axis_y": axis_y,
        "left": left,
        "ticks": [(x(mark), f"{mark:g} s") for mark in marks],
        "rows": rows,
        "alt": f"Mean JCT at {points[0].load}: "
        + "; ".join(
            f"{p.variant} live {seconds(p.live_s)}, virtual {seconds(p.virtual_s)}" for p in points
        ),
    }


def ticks(largest: float) -> tuple[list[float], float]:
    """Return round tick values from zero, and the end of the axis: the tick from `largest` on."""
    if not largest > 0:
        return [0.0], 1.0
    rough = largest / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    count = math.ceil(largest / step)
    return [round(step * k, 9) for k in range(count + 1)], step * count
