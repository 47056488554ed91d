"""Tests whether jobs are significantly slower in one run than in another with the same settings.

In: two `Side`s. Out: a `Change` for each policy, load and metric. docs/howto/compare.md defines the
terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from reports.answer.provenance import heading
from reports.compare.baseline import Side
from reports.compare.pairs import JobPairs, ProgramPairs, pairs
from reports.phrasing import listed
from reports.run_folder.lines import RERUN
from reports.statistics.bootstrap import CONFIDENCE, Estimate
from reports.statistics.over_seeds import geometric_mean, paired_ratio
from servers.errors import NotComparable

METRICS = {"jct.mean": None, "jct.p50": 50, "jct.p90": 90, "jct.p95": 95, "jct.p99": 99}
"""Percentiles by the name of the metric. None is the mean."""
SAME_QUESTION = ("engine", "hardware", "model", "profile", "limits", "arrivals", "background")
MUST_BE_EQUAL = (*SAME_QUESTION, "jps", "seeds")
"""Settings that all entries of a history share. Two runs are compared at their common rates and
seeds, so only `SAME_QUESTION` must be equal."""
TRACE = ("trace_sha256", "programs", "turns")
CAPACITY = "capacity"
"""Load of a comparison of capacities."""

Outcome = Literal["identical", "regression", "slower", "faster", "noise", "unknown"]
"""Unknown: there is no interval, because one seed says nothing about others. A lower capacity is
slower."""


@dataclass(frozen=True, slots=True)
class Change:
    variant: str
    load: str
    metric: str
    pairs: int
    """Programs that were compared, each in all common seeds; in steady state, jobs; of capacities,
    seeds."""
    base: float
    """Seconds, or jobs per second of a capacity."""
    new: float
    change: Estimate
    """new ÷ base − 1. For times, positive values mean that the new run is slower."""
    outcome: Outcome

    @property
    def is_capacity(self) -> bool:
        return self.load == CAPACITY


@dataclass(frozen=True, slots=True)
class Verdict:
    changes: tuple[Change, ...]
    unpaired: tuple[str, ...]
    """Policies, loads and seeds that only one of the runs has."""
    invalid: tuple[str, ...]
    """Cells of the new run without a result or with a failed gate, and damaged ones of both."""
    context: tuple[str, ...] = ()
    """Workload, model, machine and engine of both runs."""

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
    """Compare the policies, loads and seeds that both sides have. `max_regression` is relative:
    0.05 allows 5%.

    Raises NotComparable.
    """
    _refuse_different(base, new)
    base_jobs, new_jobs = _by_point(base), _by_point(new)
    changes = _capacity_changes(base, new, max_regression, confidence)
    for key in base_jobs.keys() & new_jobs.keys():
        pair = pairs(base_jobs[key], new_jobs[key], steady=base.steady)
        for metric in metrics if pair.size else ():
            before, after, relative = pair.compared(METRICS[metric], confidence)
            change = Estimate(relative.value - 1, relative.low - 1, relative.high - 1)
            outcome = _outcome(change, pair, max_regression)
            changes.append(Change(*key, metric, pair.size, before, after, change, outcome))
    if not changes:
        raise NotComparable(
            f"{base.name} and {new.name}: no job finished in both under the same policy, load and "
            "seed"
        )
    damaged = {cell: why for cell, why in base.invalid.items() if why.endswith(RERUN)}
    invalid = damaged | new.invalid
    return Verdict(
        tuple(sorted(changes, key=lambda c: (not c.is_capacity, c.load, c.variant))),
        tuple(_unpaired(base, new)),
        tuple(f"{cell}: {why}" for cell, why in sorted(invalid.items())),
        tuple(heading(base.settings)),
    )


def _refuse_different(base: Side, new: Side) -> None:
    if base.steady != new.steady:
        stream, fixed = (base, new) if base.steady else (new, base)
        raise NotComparable(
            f"{stream.name} measured a steady state and {fixed.name} a fixed set of jobs (--once): "
            "their JCTs are of different jobs; run one of them again like the other"
        )
    if found := list(differences(base.settings, new.settings, SAME_QUESTION)):
        found = [*_options(base.settings, new.settings), *found]
        raise NotComparable(
            f"{base.name} and {new.name} have different settings: {'; '.join(found)}; run one of "
            "them again with the other's sweep.toml, or read both reports: bench compare tests "
            "whether a change of the code made jobs slower. Different machines and models: "
            "bench compare --across hardware,model"
        )
    slos = [side.capacities.slo for side in (base, new) if side.capacities]
    if len(set(slos)) > 1:
        raise NotComparable(
            f"{base.name} and {new.name} have capacities with different SLOs, {slos[0]} and "
            f"{slos[1]}; run one of them again with the other's --slo"
        )


def _capacity_changes(
    base: Side, new: Side, max_regression: float, confidence: float
) -> list[Change]:
    if base.capacities is None or new.capacities is None:
        return []
    changes = []
    for variant, old_per_s in base.capacities.jobs_per_s.items():
        new_per_s = new.capacities.jobs_per_s.get(variant, {})
        seeds = sorted(old_per_s.keys() & new_per_s.keys())
        relative = paired_ratio(new_per_s, old_per_s, confidence)
        if relative is None:
            continue
        change = Estimate(relative.value - 1, relative.low - 1, relative.high - 1)
        before, after = (
            geometric_mean(per_s[seed] for seed in seeds).value for per_s in (old_per_s, new_per_s)
        )
        if all(old_per_s[seed] == new_per_s[seed] for seed in seeds):
            outcome: Outcome = "identical"
        else:
            outcome = _direction(change, -change.value, max_regression)
        row = (variant, CAPACITY, "jobs/s", len(seeds), before, after, change, outcome)
        changes.append(Change(*row))
    return changes


def _unpaired(base: Side, new: Side) -> Iterable[str]:
    """Yield what only one side has. Rates of a policy are one phrase, since searches for
    capacities try many."""
    for mine, other in ((base, new), (new, base)):
        others = _by_point(other).keys()
        policies = {variant for variant, _ in others}
        only: dict[str, list[str]] = {}
        for variant, load in sorted(_by_point(mine).keys() - others):
            only.setdefault(variant, []).append(load)
        for variant, loads in only.items():
            at = f" at {_loads(loads)}" if variant in policies else ""
            yield f"{variant}{at} ({mine.name})"
        if seeds := sorted(set(mine.jobs["seed"]) - set(other.jobs["seed"])):
            yield f"{listed([f'seed {seed}' for seed in seeds])} ({mine.name})"


def _loads(loads: Sequence[str]) -> str:
    rates = [load.removesuffix(" jobs/s") for load in loads]
    return f"{listed(rates, at_most=4)}{' jobs/s' if rates != list(loads) else ''}"


def _by_point(side: Side) -> dict[tuple[str, str], pd.DataFrame]:
    groups = side.jobs.groupby(["variant", "load"])
    return {(str(variant), str(load)): jobs for (variant, load), jobs in groups}


def _outcome(change: Estimate, pair: ProgramPairs | JobPairs, max_regression: float) -> Outcome:
    if pair.identical:
        return "identical"
    if pair.too_few:
        return "noise"
    return _direction(change, change.value, max_regression)


def _direction(change: Estimate, slowdown: float, max_regression: float) -> Outcome:
    if not change.has_interval:
        return "unknown"
    if change.low <= 0 <= change.high:
        return "noise"
    if slowdown > max_regression:
        return "regression"
    return "slower" if slowdown > 0 else "faster"


def comparable_settings(side: Side) -> dict[str, Any]:
    """Return the settings that must be equal in a history."""
    workload = side.settings.get("workload") or {}
    return {
        **{field: side.settings.get(field) for field in MUST_BE_EQUAL},
        "workload": {field: workload.get(field) for field in TRACE},
        **({"steady_state": True} if side.steady else {}),
    }


def differences(
    one: dict[str, Any], other: dict[str, Any], fields: Sequence[str] = MUST_BE_EQUAL
) -> Iterable[str]:
    """Yield a phrase for each field in which two settings differ."""
    for field in fields:
        if one.get(field) != other.get(field):
            yield _difference(field, one.get(field), other.get(field))
    if bool(one.get("steady_state")) != bool(other.get("steady_state")):
        yield "a steady state and a fixed set of jobs (--once)"
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
