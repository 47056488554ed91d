"""Tests whether jobs are significantly slower in one run than in another with the same settings.

In: two `Side`s. Out: a `Change` for each policy, load and metric. docs/howto/compare.md defines the
terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from reports.compare.baseline import Side
from reports.phrasing import listed
from reports.statistics.bootstrap import CONFIDENCE, Estimate, Floats, of, paired, ratio
from servers.errors import NotComparable

METRICS = {"jct.mean": None, "jct.p50": 50, "jct.p90": 90, "jct.p95": 95, "jct.p99": 99}
"""Percentiles by the name of the metric. None is the mean."""
MUST_BE_EQUAL = ("engine", "hardware", "model", "profile", "limits", "arrivals", "jps", "seeds")
TRACE = ("trace_sha256", "programs", "turns")
MIN_PROGRAMS = 5
"""With fewer programs, an interval is too unreliable to report a difference."""

Outcome = Literal["identical", "regression", "slower", "faster", "noise"]


@dataclass(frozen=True, slots=True)
class Change:
    variant: str
    load: str
    metric: str
    programs: int
    base_s: float
    new_s: float
    change: Estimate
    """new ÷ base − 1. Positive values mean that the new run is slower."""
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Verdict:
    changes: tuple[Change, ...]
    unpaired: tuple[str, ...]
    """Policies and loads that only one of the runs has."""
    invalid: tuple[str, ...]
    """Cells of the new run without a result or with a failed gate."""

    @property
    def regressions(self) -> list[Change]:
        return [change for change in self.changes if change.outcome == "regression"]

    @property
    def good(self) -> bool:
        return not self.regressions and not self.invalid

    @property
    def identical(self) -> bool:
        """Whether all numbers are exactly equal, and the policies and loads are the same."""
        same = all(change.outcome == "identical" for change in self.changes)
        return same and not self.unpaired and not self.invalid


def compare_sides(
    base: Side,
    new: Side,
    metrics: Sequence[str],
    max_regression: float,
    confidence: float = CONFIDENCE,
) -> Verdict:
    """Compare the jobs that both sides have. `max_regression` is relative: 0.05 allows 5%.

    Raises NotComparable.
    """
    if found := list(differences(base.settings, new.settings)):
        found = [*_options(base.settings, new.settings), *found]
        raise NotComparable(
            f"{base.name} and {new.name} have different settings: {'; '.join(found)}; run one of "
            "them again with the other's sweep.toml, or read both reports: bench compare tests "
            "whether a change of the code made jobs slower"
        )
    base_jobs, new_jobs = _by_point(base), _by_point(new)
    changes = []
    for key in base_jobs.keys() & new_jobs.keys():
        old_s, new_s = paired(base_jobs[key], new_jobs[key])
        if not old_s.size:
            continue
        for metric in metrics:
            relative = ratio(new_s, old_s, METRICS[metric], confidence)
            change = Estimate(relative.value - 1, relative.low - 1, relative.high - 1)
            outcome = _outcome(old_s, new_s, change, max_regression)
            before, after = (float(of(x, METRICS[metric])) for x in (old_s, new_s))
            changes.append(Change(*key, metric, len(old_s), before, after, change, outcome))
    unpaired = base_jobs.keys() ^ new_jobs.keys()
    if not changes:
        raise NotComparable(
            f"{base.name} and {new.name}: no job finished in both under the same policy and load"
        )
    return Verdict(
        tuple(sorted(changes, key=lambda c: (c.load, c.variant, metrics.index(c.metric)))),
        tuple(sorted(f"{variant} at {load}" for variant, load in unpaired)),
        tuple(f"{cell}: {why}" for cell, why in sorted(new.invalid.items())),
    )


def _by_point(side: Side) -> dict[tuple[str, str], pd.DataFrame]:
    groups = side.jobs.groupby(["variant", "load"])
    return {(str(variant), str(load)): jobs for (variant, load), jobs in groups}


def _outcome(old_s: Floats, new_s: Floats, change: Estimate, max_regression: float) -> Outcome:
    if np.array_equal(old_s, new_s):
        return "identical"
    if len(old_s) < MIN_PROGRAMS or change.low <= 0 <= change.high:
        return "noise"
    if change.value > max_regression:
        return "regression"
    return "slower" if change.value > 0 else "faster"


def comparable_settings(side: Side) -> dict[str, Any]:
    """Return the settings that must be equal for results to be comparable."""
    workload = side.settings.get("workload") or {}
    return {
        **{field: side.settings.get(field) for field in MUST_BE_EQUAL},
        "workload": {field: workload.get(field) for field in TRACE},
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> Iterable[str]:
    """Yield a phrase for each field in which two settings differ."""
    for field in MUST_BE_EQUAL:
        if one.get(field) != other.get(field):
            yield _difference(field, one.get(field), other.get(field))
    workloads = [side.get("workload") or {} for side in (one, other)]
    for field in TRACE:
        values = [workload.get(field) for workload in workloads]
        if values[0] != values[1]:
            yield _difference(f"workload.{field}", *values)


def _options(one: dict[str, Any], other: dict[str, Any]) -> Iterable[str]:
    """Yield a phrase for each recorded option whose value explains differences in the profile."""
    for name, old, new in (
        ("scheduling", one.get("scheduling"), other.get("scheduling")),
        ("kv-cache-dtype", *(side.get("kv_cache_dtype") or "auto" for side in (one, other))),
        ("step-times", *((side.get("profile") or {}).get("provenance") for side in (one, other))),
        ("admission", *((side.get("limits") or {}).get("admission") for side in (one, other))),
    ):
        if old and new and old != new:
            yield f"{name}: {old} against {new}"


def _difference(field: str, one: Any, other: Any) -> str:
    of_one, of_other = (value if isinstance(value, dict) else {} for value in (one, other))
    keys = of_one.keys() | of_other.keys()
    if fields := sorted(key for key in keys if of_one.get(key) != of_other.get(key)):
        return f"{field}: {listed(fields)}"
    short = [v[:12] if isinstance(v, str) else v for v in (one, other)]
    return f"{field} {short[0]} and {short[1]}"
