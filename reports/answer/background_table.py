"""Formats the table of background requests for a terminal.

In: points. Out: a Rich renderable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reports.answer.table import short_name, with_loads
from reports.metrics.background import MEAN_TTFT, P95_TTFT, REQUESTS, SERVED
from reports.statistics.points import Point
from reports.table import Fitted, Layout, Line, right
from servers.basics.phrasing import seconds, share

HEADS = ("requests", "served", "mean TTFT", "P95 TTFT")


@dataclass(frozen=True, slots=True)
class BackgroundTable(Fitted):
    points: Sequence[Point]
    """Points of cells with a background."""

    def layouts(self) -> Iterator[Layout]:
        lines = [
            Line((load, short_name(p.variant), *_numbers(p)), "dim" if p.bound else "")
            for p, load in with_loads(self.points)
        ]
        yield Layout([("load", "left"), ("background with", "left"), *right(HEADS)], lines)


def merged(points: Sequence[Point]) -> list[Point]:
    """Return the points of one rate, or a single point if all rows would be the same."""
    if len(points) < 2 or len({_numbers(point) for point in points}) > 1:
        return list(points)
    return [replace(points[0], variant=f"each of {len(points)}", bound=False)]


def _numbers(point: Point) -> tuple[str, ...]:
    return (
        f"{point.pooled[REQUESTS]:,.0f}",
        share(point.pooled[SERVED]),
        seconds(point.pooled[MEAN_TTFT]),
        seconds(point.pooled[P95_TTFT]),
    )
