"""Answers how many jobs per second a machine sustains under each scheduler.

In: capacities over seeds, and points. Out: sentences of at most about 30 words, and the numbers in
them. docs/design/statistics.md, "Capacity", has the rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.answer.provenance import provenance as provenance_of
from reports.answer.verdict import Answer
from reports.capacity.estimate import Kind
from reports.capacity.slo import Slo
from reports.phrasing import counted, gpus_in_words, listed, seconds, times
from reports.statistics.bootstrap import Estimate, interval
from reports.statistics.capacities import EQUAL_WITHIN, VariantCapacity, equal, winners
from reports.statistics.points import Point

MOST_NAMES = 5
"""A headline names at most this many schedulers that tie; the table has all."""
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True, slots=True)
class Price:
    """What one machine of the sweep costs: one model, on `gpus` GPUs."""

    gpus: int
    usd_per_h: float
    """NaN if the hardware has no price."""

    def gpus_for(self, jobs_per_s: float, capacity: float) -> int:
        # A hair less, so that 3 machines at exactly their capacity are not 4.
        return self.gpus * math.ceil(jobs_per_s / capacity * (1 - 1e-9))

    def usd_per_1000_jobs(self, capacity: float) -> float:
        return self.usd_per_h * self.gpus / 3600 / capacity * 1000


def price_of(sweep: Mapping[str, Any]) -> Price:
    price = (sweep.get("gpu") or {}).get("price_usd_per_hour")
    return Price(sweep.get("gpus") or 1, price if isinstance(price, int | float) else math.nan)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the capacities of a run are about."""

    slo: Slo
    idle_mean_s: float
    baseline: str
    machine: str
    price: Price
    seeds: int


def asked_of(sweep: Mapping[str, Any], slo: Slo, idle_mean_s: float) -> Asked:
    machine = gpus_in_words(sweep.get("hardware") or "this machine", sweep.get("gpus"))
    return Asked(
        slo, idle_mean_s, str(sweep["baseline"]), machine, price_of(sweep), len(sweep["seeds"])
    )


def capacity_answer(
    found: Sequence[VariantCapacity],
    points: Sequence[Point],
    asked: Asked,
    sweep: Mapping[str, Any],
    caveats: Sequence[str],
) -> Answer:
    best = winners(found)
    base = next((each for each in found if each.variant == asked.baseline), None)
    names = [each.variant for each in best]
    # Schedulers that tie with the baseline are not compared with it: the differences are noise.
    shown = [asked.baseline] if asked.baseline in names else names
    load, point, base_point = _compared(shown, base, points)
    beyond = _beyond(best, base, points)
    findings = [
        meaning(asked.slo, asked.idle_mean_s),
        *_jct(point, base_point, base),
        *_jct_beyond(beyond, asked.baseline),
        *_others(found, best, asked),
        *_resources(best, base, asked),
        *_reference(found),
        *_without_number(found),
    ]
    return Answer(
        _headline(found, best, asked),
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
    """Return the load at which JCTs are compared, and the points of the fastest winner and of the
    baseline there: the highest load that the baseline sustains with every seed, and at which both
    are stable. Above it, JCTs of the baseline differ by factors between seeds."""
    most = min(base.per_s.values(), default=math.inf) if base is not None else math.inf
    stable = [p for p in points if not p.saturated and p.jps is not None and p.jps <= most]
    for load in dict.fromkeys(p.load for p in sorted(stable, key=lambda p: -(p.jps or 0))):
        here = [p for p in stable if p.load == load]
        best = min(
            (p for p in here if p.variant in names), key=lambda p: p.jct_mean_s.value, default=None
        )
        own = next((p for p in here if base is not None and p.variant == base.variant), None)
        if best is not None and own is not None:
            return load, best, own
    return (points[0].load if points else None), None, None


def rate(value: float) -> str:
    return f"{value:.3g} jobs/s"


def rate_interval(estimate: Estimate) -> str:
    """Format an interval, such as `95% CI 0.41–0.47`."""
    if not estimate.has_interval:
        return "one seed, so no interval"
    return f"95% CI {estimate.low:.3g}–{estimate.high:.3g}"


def _headline(
    found: Sequence[VariantCapacity],
    best: Sequence[VariantCapacity],
    asked: Asked,
) -> str:
    if not best:
        return _no_number(found, asked)
    if best[0].kind is Kind.ALWAYS:
        return _always(best, asked)
    first, value = best[0], _value(best[0])
    if len([each for each in found if not each.bound]) == 1:
        return (
            f"{first.variant} sustains {rate(value.value)} on {asked.machine}"
            f" ({rate_interval(value)}). The run has no other scheduler."
        )
    sustain = f"{_about(best)} on {asked.machine}"
    if len(best) == len([each for each in found if not each.bound]):
        who = "All" if equal(best) else "The"
        return f"{who} {len(best)} schedulers {_tie(best)}: they sustain {sustain}."
    if any(each.variant == asked.baseline for each in best):
        return _baseline_wins(best, asked)
    more = _more_than_baseline(best, asked)
    if len(best) == 1:
        return f"{first.variant} sustains {rate(value.value)} on {asked.machine}{more}."
    count = WORDS[len(best)].capitalize() if len(best) < len(WORDS) else str(len(best))
    names = _names([each.variant for each in best])
    return f"{count} schedulers {_tie(best)}: {names}. They sustain {sustain}{more}."


def _about(best: Sequence[VariantCapacity]) -> str:
    """Return the capacity of variants that tie, or its range if they are not equal."""
    values = [_value(each).value for each in best]
    if equal(best):
        return f"about {rate(max(values))}"
    return f"{min(values):.3g} to {rate(max(values))}"


def _value(each: VariantCapacity) -> Estimate:
    value = each.jobs_per_s
    return Estimate(math.nan, math.nan, math.nan) if value is None else value


def _more_than_baseline(best: Sequence[VariantCapacity], asked: Asked) -> str:
    each, ratios = best[0], [other.ratio.value for other in best if other.ratio is not None]
    if each.ratio is None:
        return ""
    if not equal(best) and times(min(ratios)) != times(max(ratios)):
        return f", {times(min(ratios))} to {times(max(ratios))} as many as {asked.baseline}"
    return f", {times(each.ratio.value)} as many as {asked.baseline} ({interval(each.ratio)})"


def _baseline_wins(best: Sequence[VariantCapacity], asked: Asked) -> str:
    base = next(each for each in best if each.variant == asked.baseline)
    sustains = f"{base.variant}, which sustains {rate(_value(base).value)} on {asked.machine}"
    if len(best) == 1:
        return f"No scheduler sustains more jobs than {sustains}."
    others = [each.variant for each in best if each is not base]
    return f"No scheduler sustains more than {sustains}; {_names(others)} and it {_tie(best)}."


def _tie(best: Sequence[VariantCapacity]) -> str:
    return f"are equal within {EQUAL_WITHIN:.0%}" if equal(best) else "do not differ significantly"


def _names(names: Sequence[str]) -> str:
    return listed(names, at_most=MOST_NAMES)


def _no_number(found: Sequence[VariantCapacity], asked: Asked) -> str:
    kinds = {each.kind for each in found}
    if kinds == {Kind.NEVER}:
        return (
            f"No scheduler sustains any rate on {asked.machine}: the SLO {asked.slo} is not met"
            f" even by jobs that hardly ever meet. Their mean JCT is {seconds(asked.idle_mean_s)}."
        )
    return "The search for capacities has not finished: the same command continues it."


def _always(best: Sequence[VariantCapacity], asked: Asked) -> str:
    rates = [c.sustained for each in best for c in each.by_seed.values() if c.sustained]
    names = [each.variant for each in best]
    verb = "meets" if len(names) == 1 else "meet"
    return (
        f"{_names(names)} {verb} the SLO {asked.slo} at every rate that was tried, up to"
        f" {rate(min(rates))} on {asked.machine}: a stricter --slo would separate schedulers."
    )


def meaning(slo: Slo, idle_mean_s: float) -> str:
    """Return two sentences that say which rates are sustained."""
    return (
        f"Sustained means: {slo.describe()}, and a queue that does not grow. On an idle"
        f" machine the mean JCT is {seconds(idle_mean_s)}."
    )


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


def _others(
    found: Sequence[VariantCapacity], best: Sequence[VariantCapacity], asked: Asked
) -> list[str]:
    rest = [
        (each.variant, each.ratio)
        for each in sorted(found, key=lambda e: -_value(e).value)
        if each not in best and not each.bound and each.ratio is not None
    ]
    more = [(name, r) for name, r in rest if r.low > 1 and r.value > 1 + EQUAL_WITHIN]
    fewer = [(name, r) for name, r in rest if r.high < 1 and r.value < 1 - EQUAL_WITHIN]
    even = [name for name, r in rest if (name, r) not in more + fewer]
    sentences = []
    if more:
        sentences.append(f"Also more than {asked.baseline}: {_with_ratios(more)}.")
    if even:
        sentences.append(f"Not significantly different from {asked.baseline}: {listed(even)}.")
    if fewer:
        sentences.append(f"Less than {asked.baseline}: {_with_ratios(fewer)}.")
    return sentences


def _with_ratios(rated: Sequence[tuple[str, Estimate]]) -> str:
    return listed([f"{name} {times(ratio.value)}" for name, ratio in rated])


def _resources(
    best: Sequence[VariantCapacity], base: VariantCapacity | None, asked: Asked
) -> list[str]:
    """Say how many GPUs a round rate above one machine's capacity needs, and what jobs cost."""
    if not best or best[0].jobs_per_s is None:
        return []
    shown = [best[0]]
    if base is not None and base.jobs_per_s is not None:
        shown = [base] if base in best else [best[0], base]
    target = 10.0 ** math.ceil(math.log10(2 * max(_value(each).value for each in shown)))
    gpus = [
        f"{counted(asked.price.gpus_for(target, _value(each).value), 'GPU')} with {each.variant}"
        for each in shown
    ]
    needs = "1 job/s needs" if target == 1 else f"{target:g} jobs/s need"
    sentences = [f"{needs} {listed(gpus)}."]
    if not math.isnan(asked.price.usd_per_h):
        costs = [
            f"{asked.price.usd_per_1000_jobs(_value(each).value):.3g} USD with {each.variant}"
            for each in shown
        ]
        sentences.append(f"A thousand jobs cost {listed(costs)}, at capacity.")
    return sentences


def _reference(found: Sequence[VariantCapacity]) -> list[str]:
    return [
        f"For reference: {each.variant}, which knows the future, sustains {rate(value.value)}."
        for each in found
        if each.bound and (value := each.jobs_per_s) is not None
    ]


def _without_number(found: Sequence[VariantCapacity]) -> list[str]:
    never = [each.variant for each in found if each.kind is Kind.NEVER]
    if not never or len(never) == len(found):
        return []
    return [f"No rate is sustained, with at least one seed: {listed(never)}."]


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
