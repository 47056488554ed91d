"""Defines claims about the numbers of runs.

In: the `[[checks]]` of an experiment's file. Out: `Check`. docs/reference/metrics.md defines the
metrics.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

CellMetric = Literal[
    "jct_mean_s",
    "jct_p50_s",
    "jct_p90_s",
    "jct_p95_s",
    "jct_p99_s",
    "jct_steady_mean_s",
    "throughput_jobs_per_s",
    "throughput_ratio",
    "throughput_turns_per_min",
    "throughput_jobs_per_h_per_gpu",
    "usd_per_job",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p95_s",
    "tpot_mean_s",
    "tpot_p50_s",
    "tpot_p95_s",
    "hit_ratio",
    "device_hit_ratio",
    "dram_hit_ratio",
    "ssd_hit_ratio",
    "computed_ratio",
    "hit_bound_ratio",
    "pinned_ratio",
    "pin_block_s",
    "pin_unused_block_s",
    "queue_mean_s",
    "queue_max_s",
    "slowdown_mean",
    "slowdown_p99",
    "slowdown_max",
    "jain_index",
    "jct_short_third_s",
    "jct_middle_third_s",
    "jct_long_third_s",
    "jct_longest_tenth_s",
    "jct_bound_s",
    "jct_over_bound",
    "rate_bound_jobs_per_s",
    "preemptions",
    "jobs",
    "failed_turns",
    "drain_s",
    "drain_ratio",
    "backlog_growth",
    "residual",
    "lateness_ratio",
]
"""A column of `cells.csv`."""
WorkloadMetric = Literal[
    "turns_mean",
    "turns_sd",
    "turns_max",
    "tool_mean_ms",
    "tool_sd_ms",
    "tool_within_1s_ratio",
    "tokens_mean",
    "tokens_sd",
    "tail_ratio",
    "tokens_left_ratio",
    "early_mean_error",
    "late_mean_error",
    "mean_error_fall",
]
"""A number of a workload (docs/howto/experiments.md)."""
Metric = Literal[CellMetric, WorkloadMetric, "bubble_share", "turn_mean_s", "capacity_jobs_per_s"]
"""`bubble_share` is queueing time ÷ JCT, `turn_mean_s` the mean time of the turns with the number
`Check.turn`, and `capacity_jobs_per_s` the highest rate that is sustained."""
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
LOWER = ("jct_", "ttft_", "tpot_", "queue_", "bubble_", "turn_mean", "usd_", "slowdown", "preempt")
HIGHER = ("throughput_", "capacity_", "hit_ratio", "device_hit", "dram_hit", "ssd_hit", "jain")


class Check(BaseModel):
    """A claim about the metric of variant `of`, or about its ratio to that of variant `to`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: str
    of: str
    to: str | None = None
    metric: Metric = "jct_mean_s"
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
    loads: tuple[float, ...] = ()
    where: Literal["every", "some", "rising", "stable"] = "every"
    """Whether the claim must hold at every arm and load or only at some, or whether the number must
    rise from the first arm to the last or stay within a factor of `most`."""

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
        if self.to is None:
            return f"{name} of {self.of}" + (f"; {better} is better" if better else "")
        ratio = f"{name} of {self.of} ÷ that of {self.to}"
        return ratio + (f"; {better} is better for {self.of}" if better else "")


def _better(metric: str) -> str:
    return "lower" if metric.startswith(LOWER) else "higher" if metric.startswith(HIGHER) else ""
