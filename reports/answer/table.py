"""Formats the tables of results for a terminal, as wide as it is: the matrix of policies and rates
with capacities, all numbers at a rate, and background requests.

In: points, and capacities if they were searched. Out: Rich renderables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from reports.answer.headline import NEGLIGIBLE
from reports.answer.speed_ups import PER_S
from reports.metrics.background import MEAN_TTFT, P95_TTFT, REQUESTS, SERVED
from reports.numbers import DASH, digits, short
from reports.statistics.capacities import SeedShare, VariantCapacity
from reports.statistics.points import Point
from reports.table import Fitted, Head, Layout, Line, TableRow, right
from servers.basics.phrasing import seconds, share, times

UNSTABLE = "unstable"
GATE = "GATE"
MIN_RATES = 3
"""If fewer rates than this fit, the matrix drops the intervals of capacities first."""


@dataclass(frozen=True, slots=True)
class RateMatrix(Fitted):
    """A row per policy: its capacity, then its mean JCT at each common rate."""

    points: Sequence[Point]
    """Including unstable ones."""
    rows: Sequence[TableRow] = ()
    """Empty if no capacities were searched."""
    capacities: Sequence[VariantCapacity] = ()
    """The capacities in `rows`, as numbers."""
    note: str = ""
    """A sentence about all capacities, below the table."""

    def layouts(self) -> Iterator[Layout]:
        yield from (self._layout(loads, intervals) for intervals, loads in self._sizes())

    def _sizes(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield (number of intervals, rates) of ever smaller tables: first without the interval of
        the ratio, then with fewer rates, then without intervals."""
        loads = list(dict.fromkeys(p.load for p in self.points))
        if not self.rows:
            yield from ((0, loads[n:]) for n in range(len(loads) + 1))
            return
        yield 2, loads
        most = max(len(loads) - MIN_RATES, 0)
        yield from ((1, _around_the_middle(loads, without)) for without in range(most + 1))
        yield from ((0, _around_the_middle(loads, n)) for n in range(len(loads) + 1))

    def _layout(self, loads: Sequence[str], intervals: int) -> Layout:
        marks: set[str] = set()
        lines = []
        for variant, style, values in self._lines(intervals):
            found = [self._jct(variant, load) for load in loads]
            marks |= {mark for _, mark in found} | {text for text, _ in found if text == UNSTABLE}
            cells = (variant, *values, *(" ".join(filter(None, jct)) for jct in found))
            lines.append(Line(cells, style))
        heads = [("policy", "left"), *right((*self._heads(intervals), *map(_head, loads)))]
        unstable = self.points[0].ladder.unstable if self.points else ""
        legend = _legend(marks, unstable)
        return Layout(heads, lines, "\n".join(filter(None, [self.note, *legend])))

    def _jct(self, variant: str, load: str) -> tuple[str, str]:
        """Return the mean JCT and a mark: `GATE` if a cell is invalid, or the share of seeds that
        sustain the rate if not all do. If some do, there is the share only, also instead of
        `unstable`: a mean over such seeds would say nothing."""
        point = next((p for p in self.points if (p.variant, p.load) == (variant, load)), None)
        seeds = self._sustained(variant, load)
        mark = "" if seeds is None or seeds.is_all else str(seeds)
        if point is not None and point.failed_gates and not point.unstable:
            return seconds(point.jct_mean_s.value), GATE
        if seeds is not None and seeds.is_mixed:
            return "", mark
        if point is not None and not point.unstable:
            return seconds(point.jct_mean_s.value), mark
        return (DASH if point is None else UNSTABLE), ""

    def _sustained(self, variant: str, load: str) -> SeedShare | None:
        """Return None if the variant has no capacity, or the load no rate."""
        jps = next((p.amount for p in self.points if p.load == load), None)
        capacity = next((c for c in self.capacities if c.variant == variant), None)
        return None if capacity is None or jps is None else capacity.sustained_at(jps)

    def _heads(self, intervals: int) -> tuple[str, ...]:
        if not self.rows:
            return ()
        heads = ("sustains", "95% CI", "ratio", "95% CI")
        return heads[: 2 + intervals] if intervals else heads[::2]

    def _lines(self, intervals: int) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        for row in self.rows:
            values = tuple(cell.text for cell in row.cells)
            shown = values[: 2 + intervals] if intervals else values[::2]
            style = "dim" if row.is_reference else "bold" if row.cells[0].best else ""
            yield row.name, style, shown
        if not self.rows:
            styles = {p.variant: "dim" if p.reference else "" for p in self.points}
            yield from ((name, style, ()) for name, style in styles.items())


def _around_the_middle(loads: Sequence[str], without: int) -> Sequence[str]:
    """Drop `without` rates at the ends, the two lowest first, then the two highest, so that the
    rates around the capacities remain."""
    rounds, more = divmod(without, 4)
    low, high = 2 * rounds + min(more, 2), 2 * rounds + max(more - 2, 0)
    return loads[low : len(loads) - high]


def _legend(marks: Collection[str], unstable: str) -> list[str]:
    shares = sorted({*marks} - {GATE, UNSTABLE, ""})
    lines = [f"{mark}: sustained with {mark.replace('/', ' of ')} seeds." for mark in shares]
    if GATE in marks:
        lines.append(f"{GATE}: a cell failed a validity gate.")
    return [*lines, *([f"{UNSTABLE}: {unstable}."] if UNSTABLE in marks else [])]


def _head(load: str) -> str:
    number = load.removesuffix(PER_S)
    return load if number == load else f"{float(number):.3g}/s"


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


COLUMNS: tuple[Column, ...] = (
    ("variant", lambda p: short(p.variant, NAME_LETTERS)),
    ("mean", lambda p: seconds(p.jct_mean_s.value)),
    ("faster", lambda p: times(p.against.mean.value) if p.against else ""),
    ("95% CI", lambda p: _interval(p)),
    ("P50", lambda p: seconds(p.jct_s["jct_p50_s"])),
    ("P95", lambda p: seconds(p.jct_s["jct_p95_s"])),
    ("P99", lambda p: seconds(p.jct_s["jct_p99_s"])),
    ("hits", lambda p: share(p.hit_ratio)),
    ("jobs/s", lambda p: digits(p.throughput_jobs_per_s)),
    ("", _flags),
)
IMPORTANCE = ("variant", "mean", "faster", "P95", "hits", "", "95% CI", "jobs/s", "P50", "P99")
"""A narrow terminal has the first of these columns only."""
LEFT = ("load", "variant", "")
"""Columns of words."""
MIXED = ("variant", "hits", "", "jobs/s")
"""Columns that have a value if only some seeds sustain the rate: those without JCTs."""


def _value(point: Point, column: Column) -> str:
    title, value = column
    return DASH if point.is_mixed and title not in MIXED else value(point)


def _interval(point: Point) -> str:
    if point.against is None or not point.against.mean.is_shown:
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
        every = ["load", *(head for head, _ in COLUMNS)]
        rows = [
            Line(
                (load, *(_value(point, column) for column in COLUMNS)),
                "bold" if point in best else "dim" if point.reference else "",
                point.load,
            )
            for point, load in with_loads(self.points)
        ]
        for count in range(len(COLUMNS), 0, -1):
            kept = [head in ("load", *IMPORTANCE[:count]) for head in every]
            heads: list[Head] = [
                (head, "left" if head in LEFT else "right") for head in compress(every, kept)
            ]
            lines = [line._replace(cells=tuple(compress(line.cells, kept))) for line in rows]
            yield Layout(heads, lines)

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
            Line((load, short(p.variant, NAME_LETTERS), *_numbers(p)), "dim" if p.reference else "")
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
