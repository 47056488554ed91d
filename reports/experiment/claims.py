"""Defines claims about the numbers of runs.

In: the `[[checks]]` of an experiment's file. Out: `Check`. docs/reference/metrics.md defines the
metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from servers.basics.nearest import did_you_mean

if TYPE_CHECKING:
    from reports.metrics.metric import Metric

OWN_METRICS = {"bubble_share": "lower", "turn_mean_s": "lower", "capacity_jobs_per_s": "higher"}
"""What is better. `bubble_share` is queueing time ÷ JCT, `turn_mean_s` the mean time of the turns
with the number `Check.turn`, and `capacity_jobs_per_s` the highest rate that is sustained."""
NAMES: dict[str, str] = {
    "jct_mean_s": "mean JCT",
    "jct_p50_s": "P50 JCT",
    "jct_p90_s": "P90 JCT",
    "jct_p95_s": "P95 JCT",
    "jct_p99_s": "P99 JCT",
    "throughput_jobs_per_s": "throughput",
    "throughput_turns_per_min": "turns per minute",
    "queue_mean_s": "queueing time per job",
    "bubble_share": "share of the JCT that is queueing",
    "turn_mean_s": "mean time of a turn",
    "capacity_jobs_per_s": "capacity",
}
"""Names of metrics in sentences; the others are shown as in files."""


def _cell_metrics() -> Mapping[str, Metric]:
    from reports.metrics.measure import METRICS  # slow to import; only experiments need it
    from reports.metrics.metric import FLAG, TEXT

    return {name: m for name, m in METRICS.items() if m.unit not in (FLAG, TEXT)}


def _known(name: str) -> str:
    known = (*_cell_metrics(), *OWN_METRICS)
    if name not in known:
        raise ValueError(f"is no metric{did_you_mean(name, known, 'use a column of cells.csv')}")
    return name


class Check(BaseModel):
    """A claim about the metric of variant `of`, or about its ratio to variant `to`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: str
    of: str
    to: str | None = None
    metric: Annotated[str, AfterValidator(_known)] = "jct_mean_s"
    """A column of `cells.csv`, or one of `OWN_METRICS`."""
    turn: int = Field(default=1, ge=1)
    """The number of the turn, from 1, for `turn_mean_s`."""
    least: float | None = None
    most: float | None = None
    published: str = ""
    """What the source states, in its words."""
    published_from: float | None = None
    """The number that the source states, or the smallest, in the unit of the metric."""
    published_to: float | None = None
    """The largest number, if the source states two."""
    reading: str = ""
    """The interpretation of the source that is tested, if the source is ambiguous."""
    arms: tuple[str, ...] = ()
    """Empty means all arms."""
    over: str | None = None
    """The number is divided by this arm's, at the same load."""
    above: float | None = None
    """The number is the `x` of the first arm at which the metric is above this, such as the number
    of agents at which latency rises steeply. Bounds and published numbers are then of `x`, which
    must rise from arm to arm."""
    below: float | None = None
    """The same, for a metric that falls."""
    loads: tuple[float, ...] = ()
    where: Literal["every", "some", "rising", "stable"] = "every"
    """Whether the claim must hold at every arm and load or only at some, or whether the number must
    rise from the first arm to the last or stay within a factor of `most`."""

    @model_validator(mode="after")
    def _one_threshold(self) -> Check:
        if self.is_knee and (self.above is not None) == (self.below is not None):
            raise ValueError("give above or below, not both")
        if self.is_knee and self.where != "every":
            raise ValueError(f"above and below give one number, so where cannot be {self.where}")
        return self

    @property
    def is_knee(self) -> bool:
        """Whether the number is a position on the axis of the arms."""
        return self.above is not None or self.below is not None

    @property
    def is_capacity(self) -> bool:
        """Whether the number says how much load a machine serves. A ratio does not."""
        is_load = self.metric.startswith(("capacity_", "throughput_"))
        return self.is_knee or (is_load and self.to is None and self.over is None)

    def is_past(self, number: float) -> bool:
        """Whether a number is beyond the knee."""
        if self.above is not None:
            return number > self.above
        return self.below is not None and number < self.below

    @property
    def better(self) -> str:
        """Whether a lower or a higher number is better; an empty text if neither is."""
        return _better(self.metric)

    @property
    def direction(self) -> str:
        """The number or ratio in words, and whether lower or higher is better."""
        name = NAMES.get(self.metric, self.metric)
        if self.metric == "turn_mean_s":
            name = f"mean time of turn {self.turn}"
        better = _better(self.metric)
        over = f" ÷ that of {self.over}" if self.over else ""
        ratio = f"{name} of {self.of}" + (f" ÷ that of {self.to}" if self.to else "") + over
        if self.is_knee:
            side = "above" if self.above is not None else "below"
            bound = self.above if self.above is not None else self.below
            return f"the first arm with {ratio} {side} {bound:g}"
        whose = f" for {self.of}" if self.to else ""
        return ratio + (f"; {better} is better{whose}" if better else "")


def _better(metric: str) -> str:
    own = _cell_metrics().get(metric)
    return OWN_METRICS.get(metric, "") if own is None else own.better
