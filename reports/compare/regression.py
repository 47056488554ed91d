"""Did jobs get slower from one run to another of the same question, or is it noise?

Two `Side`s in; a `Change` for each policy, load and metric out. docs/howto/compare.md defines the
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
"""Name, and which percentile; None: the mean."""
MUST_BE_EQUAL = ("engine", "hardware", "model", "profile", "limits", "arrivals", "jps", "seeds")
TRACE = ("trace_sha256", "programs", "turns")
FEWEST = 5
"""Programs without which an interval says nothing."""

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
    """new ÷ base − 1: above 0 is slower."""
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Verdict:
    changes: tuple[Change, ...]
    unpaired: tuple[str, ...]
    """Policies and loads that one side lacks."""
    invalid: tuple[str, ...]
    """Cells of the new side without a result or with a failed gate."""

    @property
    def regressions(self) -> list[Change]:
        return [change for change in self.changes if change.outcome == "regression"]

    @property
    def good(self) -> bool:
        return not self.regressions and not self.invalid

    @property
    def identical(self) -> bool:
        """To the digit, and with the same policies and loads."""
        same = all(change.outcome == "identical" for change in self.changes)
        return same and not self.unpaired and not self.invalid


def compare_sides(
    base: Side,
    new: Side,
    metrics: Sequence[str],
    max_regression: float,
    confidence: float = CONFIDENCE,
) -> Verdict:
    if found := list(differences(base.question, new.question)):
        raise NotComparable(
            f"{base.name} and {new.name} answer different questions: {'; '.join(found)}"
        )
    one, other = _points(base), _points(new)
    changes = []
    for key in one.keys() & other.keys():
        old_s, new_s = paired(one[key], other[key])
        if not old_s.size:
            continue
        for metric in metrics:
            grown = ratio(new_s, old_s, METRICS[metric], confidence)
            change = Estimate(grown.value - 1, grown.low - 1, grown.high - 1)
            outcome = _outcome(old_s, new_s, change, max_regression)
            before, after = (float(of(x, METRICS[metric])) for x in (old_s, new_s))
            changes.append(Change(*key, metric, len(old_s), before, after, change, outcome))
    lacking = one.keys() ^ other.keys()
    if not changes:
        raise NotComparable(f"{base.name} and {new.name}: no policy and load has jobs in both")
    return Verdict(
        tuple(sorted(changes, key=lambda c: (c.load, c.variant, metrics.index(c.metric)))),
        tuple(sorted(f"{variant} at {load}" for variant, load in lacking)),
        tuple(f"{cell}: {why}" for cell, why in sorted(new.invalid.items())),
    )


def _points(side: Side) -> dict[tuple[str, str], pd.DataFrame]:
    groups = side.jobs.groupby(["variant", "load"])
    return {(str(variant), str(load)): jobs for (variant, load), jobs in groups}


def _outcome(old_s: Floats, new_s: Floats, change: Estimate, most: float) -> Outcome:
    if np.array_equal(old_s, new_s):
        return "identical"
    if len(old_s) < FEWEST or change.low <= 0 <= change.high:
        return "noise"
    if change.value > most:
        return "regression"
    return "slower" if change.value > 0 else "faster"


def question_of(side: Side) -> dict[str, Any]:
    """What has to be equal for numbers to be held against each other."""
    load = side.question.get("workload") or {}
    return {
        **{field: side.question.get(field) for field in MUST_BE_EQUAL},
        "workload": {field: load.get(field) for field in TRACE},
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> Iterable[str]:
    for field in MUST_BE_EQUAL:
        if one.get(field) != other.get(field):
            yield _difference(field, one.get(field), other.get(field))
    loads = [side.get("workload") or {} for side in (one, other)]
    for field in TRACE:
        if loads[0].get(field) != loads[1].get(field):
            yield _difference(f"workload.{field}", *(load.get(field) for load in loads))


def _difference(field: str, one: Any, other: Any) -> str:
    of_one, of_other = (value if isinstance(value, dict) else {} for value in (one, other))
    keys = of_one.keys() | of_other.keys()
    if fields := sorted(key for key in keys if of_one.get(key) != of_other.get(key)):
        return f"{field}: {listed(fields)}"
    said = [v[:12] if isinstance(v, str) else v for v in (one, other)]
    return f"{field} {said[0]} against {said[1]}"
