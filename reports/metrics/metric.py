"""What a metric of cells is: its column, unit, meaning, direction, and how it pools over seeds.

A module of this package declares its metrics beside their formula, as a `Group`. `cells.csv`, the
tables of the page, points, claims and docs/reference/metrics.md have what is declared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from reports.metrics.alone import IdleMachine
from reports.metrics.steady import FinishedWork
from reports.numbers import digits, whole
from reports.run_folder.read import CellRun
from reports.run_folder.turns import Column, Turns
from servers.basics.phrasing import seconds, share
from servers.records.turns import EventRecord

Value = float | int | bool | str


class Unit(NamedTuple):
    name: str
    show: Callable[[float], str] = digits


NONE = Unit("")
SECONDS = Unit("s", seconds)
PER_S = Unit("jobs/s")
SHARE = Unit("", share)
COUNT = Unit("", whole)
FLAG = Unit("true or false")
TEXT = Unit("text")


Better = Literal["lower", "higher", ""]
Pool = Literal["mean", "max", ""]


class Metric(NamedTuple):
    column: str
    unit: Unit
    better: Better = ""
    title: str = ""
    """Heading in tables of the page; "" if none has it."""
    in_cells: bool = True
    """Whether the page's table of cells has it, if it has a title."""
    pool: Pool = ""
    """How points combine the seeds; "" if they leave it out. A mean is unknown if one seed's is."""
    meaning: str = ""
    detail: str = ""

    def means(self, meaning: str, detail: str = "") -> Metric:
        """`meaning`: a plain sentence, for the page and the documentation. `detail`: more, in
        Markdown, for the documentation only."""
        return self._replace(meaning=meaning, detail=detail)


def of_variants(
    column: str, unit: Unit, better: Better = "", title: str = "", pool: Pool = "mean"
) -> Metric:
    """Return a metric whose title is in a table of variants, and not in that of cells."""
    return Metric(column, unit, better, title, in_cells=False, pool=pool)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the metrics of a cell are computed from."""

    cell: CellRun
    every: Turns
    """All turns of the cell, without the background's."""
    turns: Turns
    """Of the measured jobs."""
    jobs: Turns
    """The measured jobs; none in an unstable cell."""
    kept: Turns
    """The jobs without those that a stall of the client delayed; the same holds for `done` and
    `good`."""
    done: Turns
    """Jobs without a failed turn."""
    good: Turns
    """Turns without an error."""
    span: FinishedWork
    """The time to which throughput refers."""
    requests: Turns
    """Of the background."""
    lateness_ratio: float
    left_out: int
    """Jobs left out because of stalls."""
    unstable: str
    """Why there is no steady state; "" if there is one, or for a fixed set of jobs."""
    machine: IdleMachine | None
    pin_events: Callable[[], Sequence[EventRecord] | None]
    """Returns the events of pins; None for a cell without events."""


class Group(NamedTuple):
    """Metrics with a common formula."""

    of: Callable[[Facts], Mapping[str, Value]]
    """Returns values by column, without columns that do not apply to the cell."""
    metrics: tuple[Metric, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(metric.column for metric in self.metrics)


def mean(values: Column) -> float:
    """Return NaN if there are no values or the engine did not report one of them."""
    return float(values.mean()) if len(values) else math.nan


def largest(values: Column) -> float:
    return float(values.max()) if len(values) else math.nan


def percentiles(values: Column, which: Sequence[int]) -> list[float]:
    """Return percentiles, interpolated linearly between the two nearest ranks."""
    if not len(values):
        return [math.nan] * len(which)
    return [float(v) for v in np.percentile(values, which)]
