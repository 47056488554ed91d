"""Compares a claim about a number with the results of runs.

In: a `Check` and cells. Out: a `Finding`. Values are means over seeds, by arm and load;
docs/reference/metrics.md defines the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import pandas as pd
from pydantic import BaseModel, ConfigDict

from reports.phrasing import counted, listed, share

Metric = Literal[
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
    "bubble_share",
    "slowdown_mean",
    "jain_index",
    "preemptions",
    "jobs",
    "failed_turns",
    "drain_s",
    "drain_ratio",
    "backlog_growth",
    "residual",
    "lateness_ratio",
]
"""A column of `cells.csv`, or `bubble_share`, which is queueing time ÷ JCT."""
RISING_TOLERANCE = 0.97
"""A number counts as rising if it falls by at most 3% from one arm to the next."""


class Check(BaseModel):
    """A claim about the metric of variant `of`, or about its ratio to that of variant `to`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: str
    of: str
    to: str | None = None
    metric: Metric = "jct_mean_s"
    least: float | None = None
    most: float | None = None
    published: str = ""
    reading: str = ""
    """The interpretation of the source that is tested, if the source is ambiguous."""
    arms: tuple[str, ...] = ()
    """Empty means all arms."""
    loads: tuple[float, ...] = ()
    where: Literal["every", "some", "rising", "stable"] = "every"
    """Whether the claim must hold at every arm and load or only at some, or whether the number must
    rise from the first arm to the last or stay within a factor of `most`."""


class Value(NamedTuple):
    jps: float
    """Rate in jobs per second; 0 in a closed loop."""
    number: float


@dataclass(frozen=True, slots=True)
class Finding:
    says: str
    published: str
    ours: str
    holds: bool
    reading: str = ""


def judge(check: Check, cells: Mapping[str, pd.DataFrame]) -> Finding:
    """Compare a claim with `cells`, the frames of the arms in order."""
    return replace(_judge(check, cells), reading=check.reading)


def _judge(check: Check, cells: Mapping[str, pd.DataFrame]) -> Finding:
    found = [v for arm in check.arms or cells for v in _values(check, cells[arm])]
    if not found:
        return Finding(check.says, check.published, "no result", False)
    if check.where == "rising":
        return _rising(check, found)
    low, high = min(v.number for v in found), max(v.number for v in found)
    if check.where == "stable":
        holds = high <= (check.most or 1.0) * low
        return Finding(check.says, check.published, _range(check, low, high), holds)
    good = [v for v in found if _within(check, v.number)]
    holds = bool(good) if check.where == "some" else len(good) == len(found)
    ours = _range(check, low, high)
    if len(found) > 1 and 0 < len(good) < len(found):
        ours += f"; holds at {len(good)} of {counted(len(found), 'point')}"
    return Finding(check.says, check.published, ours, holds)


def _values(check: Check, cells: pd.DataFrame) -> list[Value]:
    if cells.empty:
        return []
    cells = cells.assign(
        jps=cells["jps"].fillna(0.0), bubble_share=cells["queue_mean_s"] / cells["jct_mean_s"]
    )
    means = cells.groupby(["variant", "jps"])[check.metric].mean()
    found = []
    for jps in cells["jps"].unique():
        if check.loads and jps not in check.loads:
            continue
        number = float(means.get((check.of, jps), math.nan))
        if check.to is not None:
            number /= float(means.get((check.to, jps), math.nan))
        if not math.isnan(number):
            found.append(Value(float(jps), number))
    return found


def _within(check: Check, number: float) -> bool:
    least = -math.inf if check.least is None else check.least
    most = math.inf if check.most is None else check.most
    return least <= number <= most


def _rising(check: Check, found: Sequence[Value]) -> Finding:
    ours, holds = [], True
    for jps in dict.fromkeys(v.jps for v in found):
        row = [v.number for v in found if v.jps == jps]
        steady = all(b >= RISING_TOLERANCE * a for a, b in pairwise(row))
        holds &= steady and row[-1] > row[0]
        ours.append(" → ".join(_number(check, n) for n in row))
    return Finding(check.says, check.published, "; ".join(ours), holds)


def _range(check: Check, low: float, high: float) -> str:
    first, last = _number(check, low), _number(check, high)
    return first if first == last else f"{first} to {last}"


def _number(check: Check, number: float) -> str:
    if check.to is not None:
        decimals = next((d for d in (2, 3) if _rounds_to_same_side(check, number, d)), 4)
        return f"{number:.{decimals}f}x"
    if check.metric == "bubble_share":
        return share(number)
    unit = " s" if check.metric.endswith("_s") else ""
    return f"{number:.3g}{unit}" if abs(number) < 1000 else f"{number:,.0f}{unit}"


def _rounds_to_same_side(check: Check, number: float, decimals: int) -> bool:
    """Return whether the rounded number is within the claim's bounds exactly if the number is.
    0.998 would be printed as 1.00x, which does not contradict “at least 1.0”."""
    return _within(check, round(number, decimals)) == _within(check, number)


def verdict(findings: Sequence[Finding], not_testable: str = "") -> str:
    """Return a sentence: reproduced, not reproduced, or not testable here, with the reason."""
    if not findings:
        return f"Not testable here: {not_testable or 'the experiment has no checks'}"
    if readings := list(dict.fromkeys(f.reading for f in findings if f.reading)):
        return _by_reading(findings, readings)
    bad = [f for f in findings if not f.holds]
    if not bad:
        return f"Reproduced: {listed([f'{f.says} ({f.ours})' for f in findings])}."
    reasons = listed([_contradiction(f) for f in bad])
    good = len(findings) - len(bad)
    rest = f" {good} of {counted(len(findings), 'claim')} hold." if good else ""
    return f"Not reproduced: {reasons}.{rest}"


def _by_reading(findings: Sequence[Finding], readings: Sequence[str]) -> str:
    bad = {r: [f for f in findings if f.reading == r and not f.holds] for r in readings}
    good = [f"“{reading}”" for reading in readings if not bad[reading]]
    rest = [
        f"not reproduced if read as “{reading}”: {listed([_contradiction(f) for f in failed])}"
        for reading, failed in bad.items()
        if failed
    ]
    first = f"Reproduced if read as {listed(good)}" if good else "Not reproduced under any reading"
    return "; ".join([first, *rest]) + "."


def _contradiction(finding: Finding) -> str:
    published = f", published {finding.published}" if finding.published else ""
    return f"“{finding.says}” does not hold, ours {finding.ours}{published}"
