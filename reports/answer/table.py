"""Formats the table of results for a terminal, with as many columns as fit its width.

In: points. Out: a Rich renderable; plain columns if the output is not a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from reports.answer.speed_headline import NEGLIGIBLE
from reports.statistics.points import Point
from servers.basics.phrasing import seconds, share, times

Column = tuple[str, Callable[[Point], str]]


def _flags(point: Point) -> str:
    saturated = "unstable" if point.unstable else "saturated"
    words = (("reference", point.bound), (saturated, point.saturated), ("GATE", point.failed_gates))
    return " ".join(word for word, holds in words if holds)


NAME_LETTERS = 40
MOST_ALIKE = 3
"""Up to this many variants have their own rows even if their numbers are alike."""


def short_name(variant: str) -> str:
    """Shorten a long name in the middle, so that a line has room for its numbers."""
    if len(variant) <= NAME_LETTERS:
        return variant
    return f"{variant[: NAME_LETTERS - 16]}…{variant[-15:]}"


COLUMNS: tuple[Column, ...] = (
    ("variant", lambda p: short_name(p.variant)),
    ("mean", lambda p: seconds(p.jct_mean_s.value)),
    ("faster", lambda p: times(p.against.mean.value) if p.against else ""),
    ("P95", lambda p: seconds(p.jct_s["jct_p95_s"])),
    ("hits", lambda p: share(p.hit_ratio)),
    ("", _flags),
    ("95% CI", lambda p: _interval(p)),
    ("jobs/s", lambda p: "–" if p.unstable else f"{p.throughput_jobs_per_s:.3g}"),
    ("P50", lambda p: seconds(p.jct_s["jct_p50_s"])),
    ("P99", lambda p: seconds(p.jct_s["jct_p99_s"])),
)
"""In order of importance: the last one is dropped first."""


def _interval(point: Point) -> str:
    if point.against is None or not point.against.mean.has_interval:
        return ""
    return f"{point.against.mean.low:.2f}–{point.against.mean.high:.2f}"


def are_alike(points: Sequence[Point]) -> bool:
    """Return whether the variants at one rate differ by less than matters in every number."""
    if len(points) < 2 or any(p.unstable or p.failed_gates or p.saturated for p in points):
        return False
    for values in ([p.jct_mean_s.value for p in points], [p.jct_s["jct_p95_s"] for p in points]):
        if not max(values) <= (1 + NEGLIGIBLE) * min(values):
            return False
    return len({share(p.hit_ratio) for p in points}) == 1


def at_one_rate(points: Sequence[Point], baseline: str, *, has_matrix: bool) -> ResultTable | None:
    """Return the table of one rate. Many variants that are alike share one row; beneath the matrix
    they need no table."""
    if not are_alike(points):
        return ResultTable(points, baseline)
    if has_matrix:
        return None
    if len(points) <= MOST_ALIKE:
        return ResultTable(points, baseline)
    shown = next((p for p in points if p.variant == baseline), points[0])
    name = f"all {len(points)}, within {NEGLIGIBLE:.0%}"
    return ResultTable([replace(shown, variant=name, bound=False)], baseline)


@dataclass(frozen=True, slots=True)
class ResultTable:
    points: Sequence[Point]
    baseline: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for count in range(len(COLUMNS), 0, -1):
            table = self._table(COLUMNS[:count], console.is_terminal)
            unbounded = options.update(max_width=10_000)
            if Measurement.get(console, unbounded, table).maximum <= options.max_width:
                break
        yield table

    def _table(self, columns: Sequence[Column], terminal: bool) -> Table:
        table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
        table.add_column("load", no_wrap=True)
        for index, (title, _) in enumerate(columns):
            justify: JustifyMethod = "left" if index == 0 or not title else "right"
            table.add_column(Text(title), justify=justify, no_wrap=True, overflow="ellipsis")
        best = self._best()
        before = None
        for point in self.points:
            style = "bold" if point in best else "dim" if point.bound else ""
            load = Text(point.load if point.load != before else "")
            if before not in (None, point.load):
                table.add_section()
            before = point.load
            # Text, not str: Rich would read a name in brackets as markup.
            table.add_row(load, *(Text(value(point)) for _, value in columns), style=style)
        return table

    def _best(self) -> list[Point]:
        """Return the fastest variant under each load, bounds excluded."""
        loads = dict.fromkeys(p.load for p in self.points)
        ranked = [p for p in self.points if not p.bound and not p.unstable and not p.failed_gates]
        contenders = [[p for p in ranked if p.load == load] for load in loads]
        return [min(c, key=lambda p: p.jct_mean_s.value) for c in contenders if c]
