"""Formats the page's table of background requests, at the load of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from reports.statistics.points import Point
from servers.basics.phrasing import seconds, share

HEADS = ("Mean latency", "P95 latency", "Mean TTFT", "P95 TTFT", "Requests/s", "Served")
"""Headings of the numbers of `Row`."""
TIMES = ("latency_mean_s", "latency_p95_s", "ttft_mean_s", "ttft_p95_s")


class Row(NamedTuple):
    variant: str
    bound: bool
    numbers: tuple[str, ...]


def background_rows(points: Sequence[Point], load: str | None) -> list[Row]:
    """Return a row per variant; none without a background."""
    here = [point for point in points if point.load == load and point.background]
    return [_row(point) for point in here if not point.unstable]


def _row(point: Point) -> Row:
    numbers = {name.removeprefix("background_"): v for name, v in point.background.items()}
    per_s = numbers["throughput_per_s"]
    rate = "–" if math.isnan(per_s) else f"{per_s:.3g}"
    times = (seconds(numbers[name]) for name in TIMES)
    return Row(point.variant, point.bound, (*times, rate, share(numbers["served_ratio"])))
