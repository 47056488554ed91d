"""Formats the tables of results and of background requests for a terminal, as wide as it is.

In: points. Out: a Rich renderable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from reports.answer.speed_headline import NEGLIGIBLE
from reports.metrics.background import MEAN_TTFT, P95_TTFT, REQUESTS, SERVED
from reports.numbers import DASH, digits
from reports.statistics.points import Point
from reports.table import Fitted, Head, Layout, Line, right
from servers.basics.phrasing import seconds, share, times

Column = tuple[str, Callable[[Point], str]]


def _flags(point: Point) -> str:
    saturated = "unstable" if point.unstable else "saturated"
    words = (
        ("reference", bool(point.reference)),
        (saturated, point.saturated),
        ("GATE", point.failed_gates),
        (f"sustained {point.sustained}", point.is_mixed),
    )
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
    ("jobs/s", lambda p: digits(p.throughput_jobs_per_s)),
    ("P50", lambda p: seconds(p.jct_s["jct_p50_s"])),
    ("P99", lambda p: seconds(p.jct_s["jct_p99_s"])),
)
"""In order of importance: the last one is dropped first."""
LEFT = ("variant", "")
"""Columns of words."""
MIXED = ("variant", "hits", "", "jobs/s")
"""Columns that have a value if only some seeds sustain the rate: those without JCTs."""


def _value(point: Point, column: Column) -> str:
    title, value = column
    return DASH if point.is_mixed and title not in MIXED else value(point)


def _interval(point: Point) -> str:
    if point.against is None or not point.against.mean.has_interval:
        return ""
    return f"{point.against.mean.low:.2f}–{point.against.mean.high:.2f}"


def are_alike(points: Sequence[Point]) -> bool:
    """Return whether the variants at one rate differ by less than matters in every number."""
    if len(points) < 2 or any(p.unstable or p.failed_gates or p.saturated for p in points):
        return False
    if any(p.is_mixed for p in points):
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
    return ResultTable([replace(shown, variant=name, reference="")], baseline)


def with_loads(points: Sequence[Point]) -> list[tuple[Point, str]]:
    """Return each point with its load, or "" if the point before has the same."""
    before = [None, *(point.load for point in points)]
    return [(p, p.load if p.load != b else "") for p, b in zip(points, before, strict=False)]


@dataclass(frozen=True, slots=True)
class ResultTable(Fitted):
    points: Sequence[Point]
    baseline: str

    def layouts(self) -> Iterator[Layout]:
        best = self._best()
        rows = [
            Line(
                (load, *(_value(point, column) for column in COLUMNS)),
                "bold" if point in best else "dim" if point.reference else "",
                point.load,
            )
            for point, load in with_loads(self.points)
        ]
        heads: list[Head] = [(title, "left" if title in LEFT else "right") for title, _ in COLUMNS]
        for count in range(len(COLUMNS), 0, -1):
            lines = [line._replace(cells=line.cells[: count + 1]) for line in rows]
            yield Layout([("load", "left"), *heads[:count]], lines)

    def _best(self) -> list[Point]:
        """Return the fastest variant under each load, references excluded."""
        loads = dict.fromkeys(p.load for p in self.points)
        ranked = [p for p in self.points if not (p.reference or p.unstable or p.failed_gates)]
        ranked = [p for p in ranked if not p.is_mixed]
        contenders = [[p for p in ranked if p.load == load] for load in loads]
        return [min(c, key=lambda p: p.jct_mean_s.value) for c in contenders if c]


HEADS = ("requests", "served", "mean TTFT", "P95 TTFT")


@dataclass(frozen=True, slots=True)
class BackgroundTable(Fitted):
    points: Sequence[Point]
    """Points of cells with a background."""

    def layouts(self) -> Iterator[Layout]:
        lines = [
            Line((load, short_name(p.variant), *_numbers(p)), "dim" if p.reference else "")
            for p, load in with_loads(self.points)
        ]
        yield Layout([("load", "left"), ("background with", "left"), *right(HEADS)], lines)


def merged(points: Sequence[Point]) -> list[Point]:
    """Return the points of one rate, or a single point if all rows would be the same."""
    if len(points) < 2 or len({_numbers(point) for point in points}) > 1:
        return list(points)
    return [replace(points[0], variant=f"each of {len(points)}", reference="")]


def _numbers(point: Point) -> tuple[str, ...]:
    return (
        f"{point.pooled[REQUESTS]:,.0f}",
        share(point.pooled[SERVED]),
        seconds(point.pooled[MEAN_TTFT]),
        seconds(point.pooled[P95_TTFT]),
    )
