"""Formats the page's table of fairness at the load of the answer, a row per variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from reports.metrics.fairness import LONGEST_TENTH, THIRDS
from reports.statistics.points import Point
from servers.basics.phrasing import seconds

HEADS = (
    *("Mean JCT", "÷ bound", "P99 slowdown", "Max.", "Longest wait"),
    *("Short jobs", "Medium", "Long", "Longest"),
)
"""Headings of the numbers of `Row`."""


class Row(NamedTuple):
    variant: str
    bound: bool
    numbers: tuple[str, ...]


def fairness_rows(points: Sequence[Point], load: str | None) -> list[Row]:
    return [_row(point) for point in points if point.load == load and not point.unstable]


def _row(point: Point) -> Row:
    mean_s, fairness = point.jct_mean_s.value, point.fairness
    ratios = [mean_s / point.lower_bound_s, fairness["slowdown_p99"], fairness["slowdown_max"]]
    times_s = [fairness[name] for name in ("queue_max_s", *THIRDS, LONGEST_TENTH)]
    shown = (
        seconds(mean_s),
        *("–" if math.isnan(ratio) else f"{ratio:.3g}" for ratio in ratios),
        *map(seconds, times_s),
    )
    return Row(point.variant, point.bound, shown)
