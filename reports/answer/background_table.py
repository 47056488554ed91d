"""Formats the table of background requests for a terminal.

In: points. Out: a Rich renderable; plain columns if the output is not a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from reports.answer.table import short_name
from reports.metrics.background import MEAN_TTFT, P95_TTFT
from reports.statistics.points import Point
from servers.basics.phrasing import seconds, share

HEADS = ("requests", "served", "mean TTFT", "P95 TTFT")


@dataclass(frozen=True, slots=True)
class BackgroundTable:
    points: Sequence[Point]
    """Points of cells with a background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        terminal = console.is_terminal
        table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
        table.add_column("load", no_wrap=True)
        table.add_column("background with", no_wrap=True, overflow="ellipsis")
        for head in HEADS:
            table.add_column(head, justify="right", no_wrap=True)
        before = None
        for point in self.points:
            load = point.load if point.load != before else ""
            before = point.load
            # Text, not str: Rich would read a name in brackets as markup.
            cells = map(Text, (load, short_name(point.variant), *_numbers(point)))
            table.add_row(*cells, style="dim" if point.bound else "")
        yield table


def merged(points: Sequence[Point]) -> list[Point]:
    """Return the points of one rate, or a single point if all rows would be the same."""
    if len(points) < 2 or len({_numbers(point) for point in points}) > 1:
        return list(points)
    return [replace(points[0], variant=f"each of {len(points)}", bound=False)]


def _numbers(point: Point) -> tuple[str, ...]:
    return (
        f"{point.background['background_requests']:,.0f}",
        share(point.background["background_served_ratio"]),
        seconds(point.background[MEAN_TTFT]),
        seconds(point.background[P95_TTFT]),
    )
