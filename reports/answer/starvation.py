"""Names the variants that are faster on average at the expense of some jobs.

In: points and cells. Out: a caveat per load, or none (docs/design/statistics.md, "The answer").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from reports.metrics.cells import Results
from reports.metrics.fairness import LONGEST_TENTH
from reports.phrasing import listed, times
from reports.statistics.bootstrap import CONFIDENCE, MIN_SEEDS, Estimate, interval
from reports.statistics.over_seeds import paired_ratio
from reports.statistics.points import Point

MEASURES = {
    "slowdown_p99": "P99 slowdown",
    "slowdown_max": "maximum slowdown",
    LONGEST_TENTH: "mean JCT of the longest tenth of the jobs",
}
WITHOUT_LEAST_TIMES = {"jct_p99_s": "P99 JCT", "queue_max_s": "longest wait of a turn"}
"""Measures of live servers, whose slowdowns are estimated and do not compare variants."""
WORSE = 1.05
"""Smaller ratios to the baseline do not matter in practice."""


def starvation(points: Sequence[Point], results: Results, baseline: str) -> list[str]:
    """Return a caveat that names each variant whose mean JCT is significantly lower than the
    baseline's while one of `MEASURES` is significantly higher, at the highest such load."""
    found: dict[str, str] = {}
    for point in reversed(points):
        if point.bound or point.saturated or point.variant in found or point.against is None:
            continue
        if point.against.mean.low > 1 and (worse := _worse(point, results.cells, baseline)):
            found[point.variant] = f"{point.variant} at {point.load} ({listed(worse)})"
    if not found:
        return []
    return [
        f"Faster than {baseline} on average, at the expense of some jobs:"
        f" {'; '.join(reversed(found.values()))}."
    ]


def _worse(point: Point, cells: pd.DataFrame, baseline: str) -> list[str]:
    here = cells[cells["load"] == point.load]
    own = here[here["variant"] == point.variant]
    base = here[here["variant"] == baseline]
    measures = MEASURES if here["jct_bound_s"].notna().any() else WITHOUT_LEAST_TIMES
    # The intervals of all measures hold together at 95% (Bonferroni).
    confidence = 1 - (1 - CONFIDENCE) / len(measures)
    worse = []
    for column, name in measures.items():
        ratio = _ratio(_by_seed(own, column), _by_seed(base, column), confidence)
        if ratio is not None and ratio.low > 1 and ratio.value > WORSE:
            worse.append(f"{name} {times(ratio.value)} as high, {interval(ratio)}")
    return worse


def _by_seed(cells: pd.DataFrame, column: str) -> dict[int, float]:
    values = cells.dropna(subset=[column]).groupby("seed")[column].mean()
    return {int(str(seed)): float(value) for seed, value in values.items()}


def _ratio(
    own: Mapping[int, float], base: Mapping[int, float], confidence: float
) -> Estimate | None:
    """Return the ratio over the seeds of both sides; None with too few, or if one is zero."""
    if len(own.keys() & base.keys()) < MIN_SEEDS or not all([*own.values(), *base.values()]):
        return None
    return paired_ratio(own, base, confidence)
