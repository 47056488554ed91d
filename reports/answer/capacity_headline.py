"""Writes the headline on capacities: which variants win or tie, their numbers, and the ratio.

In: capacities over seeds, and the winners among them. Out: a text of at most about 36 words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.answer.capacity_context import CapacityContext, noun_of
from reports.answer.headline import MOST_NAMES, Contender, Ranking
from reports.capacity.estimate import Kind
from reports.loads import LEAST_JOBS, MIN_JOBS, least_rate
from reports.statistics.best import undecided
from reports.statistics.bootstrap import NO_INTERVAL, Estimate, limits
from reports.statistics.capacities import EQUAL_WITHIN, VariantCapacity, some_seeds
from servers.basics.phrasing import counted, listed, seconds, time_span


def rate_interval(estimate: Estimate) -> str:
    """Format an interval, such as `95% CI 0.41–0.47`."""
    return f"95% CI {limits(estimate)}" if estimate.is_shown else NO_INTERVAL


def headline(
    capacities: Sequence[VariantCapacity], best: Sequence[VariantCapacity], context: CapacityContext
) -> str:
    if not best:
        return _no_number(capacities, context)
    open_searches = [c for c in capacities if c.kind is Kind.OPEN and not c.reference]
    sentence = f"{_of_finished(capacities, best, context)}{_without_baseline(capacities, context)}"
    if not open_searches:
        return sentence
    schedulers = counted(len(open_searches), noun_of(context.sweep))
    sentence = f"The search has not finished for {schedulers}. So far: {sentence}"
    if more := [c.variant for c in open_searches if _sustains_more(c, best[0])]:
        verb = "sustains" if len(more) == 1 else "sustain"
        return f"{sentence} {_names(more)} already {verb} a higher {context.ladder.noun}."
    return sentence


def _sustains_more(capacity: VariantCapacity, best: VariantCapacity) -> bool:
    rates = [seed.sustained or 0.0 for seed in capacity.by_seed.values()]
    return best.load is not None and min(rates, default=0.0) > best.load.value


def _without_baseline(capacities: Sequence[VariantCapacity], context: CapacityContext) -> str:
    """State that the baseline sustains no rate, so there is no ratio to it."""
    base = next((c for c in capacities if c.variant == context.sweep.baseline), None)
    if base is None or base.kind is not Kind.NEVER:
        return ""
    return (
        f" The baseline {base.variant} sustains no {context.ladder.noun}{some_seeds(base.never)}."
    )


def _of_finished(
    capacities: Sequence[VariantCapacity], best: Sequence[VariantCapacity], context: CapacityContext
) -> str:
    if best[0].kind is Kind.ALWAYS:
        return _always(best, context)
    first, contenders = best[0], len([c for c in capacities if not c.reference])
    place = f"on {context.machine}"
    if contenders == 1:
        return (
            f"{first.variant} sustains {first.text()} {place} ({rate_interval(value_of(first))})."
            f" It is compared with no other {noun_of(context.sweep)}."
        )
    tie = f"are equal within {EQUAL_WITHIN:.0%}"
    if undecided(best):
        tie = f"are not distinguished with {counted(len(context.sweep.seeds), 'seed')}"
    return Ranking(
        [Contender(c.variant, value_of(c).value, c.text(), c.ratio) for c in best],
        everyone=len(best) == contenders,
        baseline=context.sweep.baseline,
        within=EQUAL_WITHIN,
        tie=tie,
        noun=noun_of(context.sweep),
        place=place,
        is_better=f"sustains more {context.ladder.things}",
    ).sentence()


def value_of(capacity: VariantCapacity) -> Estimate:
    value = capacity.load
    return Estimate(math.nan, math.nan, math.nan) if value is None else value


def _names(names: Sequence[str]) -> str:
    return listed(names, at_most=MOST_NAMES)


def _no_number(capacities: Sequence[VariantCapacity], context: CapacityContext) -> str:
    capacities = [c for c in capacities if not c.reference]
    kinds, load, noun = {c.kind for c in capacities}, context.ladder, noun_of(context.sweep)
    if not kinds:
        return f"No {noun} has a valid capacity: there is no answer."
    if kinds == {Kind.NEVER}:
        least, horizon = load.least, context.sweep.horizon
        remedy = "A looser --slo would give capacities."
        if horizon is not None and horizon.burst >= MIN_JOBS:
            least = f"the few jobs that follow a burst of {horizon.burst}"
            remedy = "A smaller --burst, a longer --horizon or a looser --slo may help."
        elif horizon is not None and least_rate(horizon.seconds) * context.idle_mean_s > LEAST_JOBS:
            least = f"{MIN_JOBS} jobs in {time_span(horizon.seconds)}, the lowest rate of a search"
            remedy = "A longer --horizon, which has lower rates, or a looser --slo may help."
        if any(c.never.is_mixed for c in capacities):
            seeds = [f"{c.variant} with {c.never.seeds} of {c.never.of} seeds" for c in capacities]
            return (
                f"No {noun} sustains a {load.noun} on {context.machine} with every seed,"
                f" so there is no capacity. The SLO {context.slo} is missed even by {least}:"
                f" {_names(seeds)}. {remedy}"
            )
        return (
            f"No {noun} sustains any {load.noun} on {context.machine}: the SLO"
            f" {context.slo} is missed even by {least}. On an idle machine the mean"
            f" JCT is {seconds(context.idle_mean_s)}. {remedy}"
        )
    return "The search for capacities has not finished: the same command continues it."


def _always(best: Sequence[VariantCapacity], context: CapacityContext) -> str:
    rates = [s.sustained for c in best for s in c.by_seed.values() if s.sustained]
    names = [c.variant for c in best]
    verb, load = "meets" if len(names) == 1 else "meet", context.ladder
    return (
        f"{_names(names)} {verb} the SLO {context.slo} at every {load.noun} that was tried, up to"
        f" {load.text(min(rates))} on {context.machine}: a stricter --slo would separate"
        f" {noun_of(context.sweep)}s."
    )
