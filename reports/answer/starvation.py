"""Lists the variants that are faster on average, or sustain more, at the expense of some jobs or of
the background.

In: points, capacities and cells. Out: a caveat of each kind, or none (docs/design/statistics.md,
"The answer").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import pandas as pd

from reports.capacity.slo import Slo
from reports.metrics.background import LATENCIES, REQUESTS, SERVED
from reports.metrics.cells import Results
from reports.metrics.fairness import LONGEST_TENTH
from reports.metrics.steady import MIN_THROUGHPUT
from reports.statistics.bootstrap import CONFIDENCE, MIN_SEEDS, Estimate, interval
from reports.statistics.capacities import VariantCapacity
from reports.statistics.over_seeds import paired_ratio
from reports.statistics.points import Point
from servers.basics.phrasing import listed, seconds, share, times
from servers.records.done import DoneRecord

Measures = Mapping[str, str]
"""Phrases by column of `cells.csv`."""
MEASURES: Measures = {
    "slowdown_p99": "P99 slowdown",
    "slowdown_max": "maximum slowdown",
    LONGEST_TENTH: "mean JCT of the longest tenth of the jobs",
}
WITHOUT_LEAST_TIMES: Measures = {"jct_p99_s": "P99 JCT", "queue_max_s": "longest wait of a turn"}
"""Measures on live servers, where slowdowns are estimates that do not compare variants."""
OF_BACKGROUND: Measures = dict(zip(LATENCIES, ("mean latency", "P95 latency"), strict=True))
WORSE = 1.05
"""Smaller ratios to the baseline do not matter in practice."""
MIN_REQUESTS = 100
"""With fewer requests in the measured time, the requests that cross its ends are too large a
share."""


def starvation(points: Sequence[Point], results: Results, baseline: str) -> list[str]:
    """Return up to three caveats. Two list variants whose mean JCT is significantly below the
    baseline's although a measure of some jobs, or of the background, is significantly higher. One
    lists variants that do not serve the background."""
    cells = results.cells
    if cells.empty:
        return []
    with_least_times = {*cells.loc[cells["jct_bound_s"].notna(), "load"]}

    def of_jobs(load: str) -> Measures:
        return MEASURES if load in with_least_times else WITHOUT_LEAST_TIMES

    unsaturated = [point for point in points if not point.saturated]
    phrases = _at_the_expense(unsaturated, cells, baseline, of_jobs, "some jobs")
    if any(point.has_background for point in points):
        requests = "the background requests"
        phrases += _at_the_expense(points, cells, baseline, lambda _: OF_BACKGROUND, requests)
        phrases += _not_served(points)
    return phrases


def _at_the_expense(
    points: Sequence[Point],
    cells: pd.DataFrame,
    baseline: str,
    measures_at: Callable[[str], Measures],
    of_whom: str,
) -> list[str]:
    phrases: dict[str, str] = {}
    for point in reversed(points):
        if point.reference or point.variant in phrases or point.against is None:
            continue
        measures = measures_at(point.load)
        if point.against.mean.low > 1 and (worse := _worse(point, cells, baseline, measures)):
            phrases[point.variant] = f"{point.variant} at {point.load} ({listed(worse)})"
    if not phrases:
        return []
    return [
        f"Faster than {baseline} on average, at the expense of {of_whom}:"
        f" {'; '.join(reversed(phrases.values()))}."
    ]


def _worse(point: Point, cells: pd.DataFrame, baseline: str, measures: Measures) -> list[str]:
    here = cells[cells["load"] == point.load]
    own = here[here["variant"] == point.variant]
    base = here[here["variant"] == baseline]
    # The intervals of all measures hold together at 95% (Bonferroni).
    confidence = 1 - (1 - CONFIDENCE) / len(measures)
    worse = []
    for column, name in measures.items():
        ratio = _ratio(_by_seed(own, column), _by_seed(base, column), confidence)
        if ratio is not None and ratio.low > 1 and ratio.value > WORSE:
            worse.append(f"{name} {times(ratio.value)} as high, {interval(ratio)}")
    return worse


def _not_served(points: Sequence[Point]) -> list[str]:
    """Return a caveat listing variants under which far fewer requests finish than arrive, each at
    the lowest such load."""
    phrases: dict[str, str] = {}
    for point in points:
        served = point.pooled.get(SERVED, 1.0)
        enough = point.pooled.get(REQUESTS, 0) >= MIN_REQUESTS
        if point.variant not in phrases and enough and served < MIN_THROUGHPUT:
            phrases[point.variant] = f"{point.variant} at {point.load} ({share(served)})"
    if not phrases:
        return []
    return [
        "Background requests starve: fewer finish than arrive, so their latency grows with the"
        f" length of the run: {'; '.join(phrases.values())}."
    ]


MUCH_LONGER = 2
"""A limit on all turns that first turns exceed by less may have been chosen for both."""


def first_turns_wait(
    capacities: Iterable[VariantCapacity],
    done: Mapping[tuple[str, float | None, int], DoneRecord],
    slo: Slo,
) -> list[str]:
    """Return a caveat listing variants whose first turns wait far longer than a limit on the TTFT
    of all turns allows, and than on an idle machine. A scheduler that holds back new jobs can meet
    such a limit with any number of agents, if first turns are few of all turns. `done`: of cells
    by variant, load and seed."""
    limit = next((each for each in slo.limits if each.measure == "ttft"), None)
    if limit is None or any(each.measure == "first_ttft" for each in slo.limits):
        return []
    of_first = replace(limit, measure="first_ttft")
    phrases = []
    for each in capacities:
        cells = [
            done.get((each.variant, load, seed)) for seed, load in each.sustained_by_seed.items()
        ]
        found = [(c.times_s, c.idle_times_s) for c in cells if c and c.times_s and c.idle_times_s]
        waits_s = [of_first.of(own) for own, _ in found]
        limits_s = [max(limit.limit_s(idle), of_first.of(idle)) for _, idle in found]
        if found and not each.reference and fmean(waits_s) > MUCH_LONGER * fmean(limits_s):
            phrases.append(f"{each.variant} {seconds(fmean(waits_s))}")
    if not phrases:
        return []
    return [
        f"At capacity new jobs wait, which {limit} hardly limits, since few turns are the first of"
        f" a job: {of_first.title} {listed(phrases)}. Limit it too, with {of_first.name} in --slo."
    ]


def _by_seed(cells: pd.DataFrame, column: str) -> dict[int, float]:
    values = cells.dropna(subset=[column]).groupby("seed")[column].mean()
    return {int(str(seed)): float(value) for seed, value in values.items()}


def _ratio(
    own: Mapping[int, float], base: Mapping[int, float], confidence: float
) -> Estimate | None:
    """Return the ratio over the seeds of both sides; None with too few, or if a value is zero."""
    if len(own.keys() & base.keys()) < MIN_SEEDS or not all([*own.values(), *base.values()]):
        return None
    return paired_ratio(own, base, confidence)
