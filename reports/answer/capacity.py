"""Answers how many jobs per second a machine sustains under each scheduler.

In: capacities over seeds, and points. Out: sentences of at most about 30 words, and the numbers in
them. docs/design/statistics.md, "Capacity", has the rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.answer.asked import Asked
from reports.answer.capacity_headline import MOST_NUMBERS, headline, rate, value_of
from reports.answer.findings import with_ratios
from reports.answer.left_out import valid_points
from reports.answer.optimum import distance_from_bound, distance_from_rate_bound
from reports.answer.provenance import provenance as provenance_of
from reports.answer.splits import is_only_axis, splits_by_capacity, splits_of
from reports.answer.verdict import Answer
from reports.capacity.estimate import Kind
from reports.capacity.slo import Slo
from reports.statistics.bootstrap import interval
from reports.statistics.capacities import EQUAL_WITHIN, VariantCapacity, some_seeds, winners
from reports.statistics.points import Point
from servers.basics.phrasing import counted, listed, seconds, times
from servers.records.sweep import SweepRecord

AFTER_A_BURST = "docs/design/statistics.md, After a burst"
"""Where the capacities of some schedulers with and without the burst are."""


def capacity_answer(
    found: Sequence[VariantCapacity],
    points: Sequence[Point],
    asked: Asked,
    sweep: SweepRecord,
    caveats: Sequence[str],
    left_out: Sequence[str] = (),
) -> Answer:
    """`left_out`: sentences about variants of the run that are not in `found`."""
    points = valid_points(points)
    best = winners(found)
    splits = splits_of(sweep)
    compared = splits_by_capacity(found, splits, asked.baseline, asked.machine)
    if not compared or not is_only_axis(splits):
        compared.append(headline(found, best, asked))
    base = next((each for each in found if each.variant == asked.baseline), None)
    names = [each.variant for each in best]
    # Schedulers that tie with the baseline are not compared with it: the differences are noise.
    shown = [asked.baseline] if asked.baseline in names else names
    load, point, base_point = _compared(shown, base, points)
    beyond = _beyond(best, base, points)
    findings = [
        meaning(asked.slo, asked.idle_mean_s),
        *_near_capacity(base, points),
        *_jct(point, base_point, base),
        *_jct_beyond(beyond, asked.baseline),
        *_tied(names),
        *_others(found, best, asked),
        *_resources(best, base, asked),
        *_reference(found),
        *distance_from_rate_bound(found, points),
        *distance_from_bound(points, load),
        *_without_number(found),
    ]
    return Answer(
        " ".join([*compared, *left_out]),
        tuple(findings),
        (*_own_caveats(found, asked), *caveats),
        provenance_of(sweep),
        load,
        point,
        base_point,
        capacities=tuple(found),
        winners=tuple(names),
        beyond=beyond,
    )


def _compared(
    names: Sequence[str], base: VariantCapacity | None, points: Sequence[Point]
) -> tuple[str | None, Point | None, Point | None]:
    """Return the load at which JCTs are compared, and the points of the highest winner that ran
    there and of the baseline: the highest load that the baseline sustains with every seed, and at
    which both are stable. Above it, JCTs of the baseline differ by factors between seeds."""
    most = min(base.per_s.values(), default=math.inf) if base is not None else math.inf
    stable = [p for p in points if not p.saturated and p.jps is not None and p.jps <= most]
    for load in dict.fromkeys(p.load for p in sorted(stable, key=lambda p: -(p.jps or 0))):
        here = {p.variant: p for p in stable if p.load == load}
        best = next((here[name] for name in names if name in here), None)
        own = here.get(base.variant) if base is not None else None
        if best is not None and own is not None:
            return load, best, own
    return (points[0].load if points else None), None, None


def meaning(slo: Slo, idle_mean_s: float) -> str:
    """Return three sentences that say which rates are sustained."""
    return (
        f"Sustained means: {slo.describe()}, and a queue that does not grow, also after a burst of"
        " jobs. Schedulers differ less from an empty system, which is not measured here"
        f" ({AFTER_A_BURST}). On an idle machine the mean JCT is {seconds(idle_mean_s)}."
    )


def _near_capacity(base: VariantCapacity | None, points: Sequence[Point]) -> list[str]:
    """Say why the baseline can miss the SLO at a rate that seems to be its capacity."""
    if base is None or base.jobs_per_s is None:
        return []
    for point in points:
        if point.variant == base.variant and point.jps is not None:
            seeds = base.sustained_at(point.jps)
            if seeds.is_mixed:
                return [
                    f"A capacity is the geometric mean over seeds, each with its own arrivals:"
                    f" {point.load} is sustained by {base.variant} with {seeds.seeds} of"
                    f" {seeds.of} seeds, so the mean JCT there is"
                    f" {seconds(point.jct_mean_s.value)}."
                ]
    return []


def _jct(point: Point | None, base: Point | None, capacity: VariantCapacity | None) -> list[str]:
    """Compare JCTs at the highest rate at which both are stable."""
    if point is None or base is None:
        return []
    at = capacity.jobs_per_s if capacity is not None else None
    own = f"the mean JCT is {seconds(point.jct_mean_s.value)} with {point.variant}"
    share = f", {base.jps / at.value:.0%} of {base.variant}'s capacity" if at and base.jps else ""
    if point is base:
        return [f"At {point.load}{share}, {own}."]
    gain = point.against
    ratio = f", {times(gain.mean.value)} as long ({interval(gain.mean)})" if gain else ""
    return [
        f"At {point.load}{share}, {own} and {seconds(base.jct_mean_s.value)} with"
        f" {base.variant}{ratio}."
    ]


def _beyond(
    best: Sequence[VariantCapacity], base: VariantCapacity | None, points: Sequence[Point]
) -> Point | None:
    """Return the winner with the highest capacity, at the highest rate that no seed of the baseline
    sustains and each seed of the winner does."""
    if base is None or base in best or base.kind is not Kind.FOUND:
        return None
    least = max(base.per_s.values())
    most = {each.variant: min(each.per_s.values(), default=0.0) for each in best}
    rank = {each.variant: place for place, each in enumerate(best)}
    beyond = [
        (p.jps, -rank[p.variant], p)
        for p in points
        if p.jps is not None and not p.saturated and least < p.jps <= most.get(p.variant, 0.0)
    ]
    return max(beyond, key=lambda each: each[:2])[2] if beyond else None


def _jct_beyond(point: Point | None, baseline: str) -> list[str]:
    if point is None:
        return []
    return [
        f"At {point.load}, more than {baseline} sustains, it is"
        f" {seconds(point.jct_mean_s.value)} with {point.variant}."
    ]


def _tied(names: Sequence[str]) -> list[str]:
    """Name all winners if the headline does not."""
    if len(names) <= MOST_NUMBERS:
        return []
    return [f"The {len(names)} that tie, the highest first: {listed(names, at_most=len(names))}."]


def _others(
    found: Sequence[VariantCapacity], best: Sequence[VariantCapacity], asked: Asked
) -> list[str]:
    rest = [
        (each.variant, each.ratio)
        for each in sorted(found, key=lambda e: -value_of(e).value)
        if each not in best and not each.bound and each.ratio is not None
    ]
    more = [(name, r) for name, r in rest if r.low > 1 and r.value > 1 + EQUAL_WITHIN]
    fewer = [(name, r) for name, r in rest if r.high < 1 and r.value < 1 - EQUAL_WITHIN]
    even = [name for name, r in rest if (name, r) not in more + fewer]
    sentences = []
    if more:
        sentences.append(f"Also more than {asked.baseline}: {with_ratios(more)}.")
    if even:
        sentences.append(f"Not significantly different from {asked.baseline}: {listed(even)}.")
    if fewer:
        sentences.append(f"Less than {asked.baseline}: {with_ratios(fewer)}.")
    return sentences


def _resources(
    best: Sequence[VariantCapacity], base: VariantCapacity | None, asked: Asked
) -> list[str]:
    """Say how many GPUs a round rate above one machine's capacity needs, and what jobs cost."""
    if not best or best[0].jobs_per_s is None:
        return []
    shown = [best[0]]
    if base is not None and base.jobs_per_s is not None:
        shown = [base] if base in best else [best[0], base]
    target = 10.0 ** math.ceil(math.log10(2 * max(value_of(each).value for each in shown)))
    gpus = [
        f"{counted(asked.price.gpus_for(target, value_of(each).value), 'GPU')} with {each.variant}"
        for each in shown
    ]
    needs = "1 job/s needs" if target == 1 else f"{target:g} jobs/s need"
    sentences = [f"{needs} {listed(gpus)}{_beside(asked)}."]
    if not math.isnan(asked.price.usd_per_h):
        costs = [
            f"{asked.price.usd_per_1000_jobs(value_of(each).value):.3g} USD with {each.variant}"
            for each in shown
        ]
        paid = ", with the background included" if asked.background_per_s else ""
        sentences.append(f"A thousand jobs cost {listed(costs)}, at capacity{paid}.")
    return sentences


def _beside(asked: Asked) -> str:
    """Say which requests these GPUs serve beside the jobs; nothing without any."""
    if not asked.background_per_s:
        return ""
    gpus = asked.price.gpus
    each = "each" if gpus == 1 else f"each machine of {counted(gpus, 'GPU')}"
    return f", {each} beside {asked.background_per_s:g} background requests/s"


def _reference(found: Sequence[VariantCapacity]) -> list[str]:
    return [
        f"For reference: {each.variant}, which knows the future, sustains {rate(value.value)}."
        for each in found
        if each.bound and (value := each.jobs_per_s) is not None
    ]


def _without_number(found: Sequence[VariantCapacity]) -> list[str]:
    never = [each for each in found if each.kind is Kind.NEVER]
    if not never or len(never) == len(found):
        return []
    names = [f"{each.variant}{some_seeds(each.never)}" for each in never]
    return [f"No rate that was tried is sustained: {listed(names)}."]


def _own_caveats(found: Sequence[VariantCapacity], asked: Asked) -> list[str]:
    caveats = []
    if still := [each.variant for each in found if each.kind is Kind.OPEN]:
        caveats.append(
            f"The search has not finished for {listed(still)}, which therefore cannot win. The same"
            " command continues it."
        )
    if asked.seeds == 1:
        caveats.append(
            "One seed: capacities have no interval, and another draw of arrivals and programs may"
            " change the order. Use --seeds 1..3 or more."
        )
    return caveats
