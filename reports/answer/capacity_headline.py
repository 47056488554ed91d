"""Writes the headline on capacities: which variants win or tie, their numbers, and the ratio.

In: capacities over seeds, and the winners among them. Out: a text of at most about 36 words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.answer.capacity_context import CapacityContext
from reports.capacity.estimate import Kind
from reports.loads import LEAST_JOBS, MIN_JOBS, least_rate
from reports.statistics.best import undecided
from reports.statistics.bootstrap import NO_INTERVAL, Estimate, interval
from reports.statistics.capacities import EQUAL_WITHIN, VariantCapacity, some_seeds
from servers.basics.phrasing import counted, listed, seconds, time_span, times

MOST_NAMES = 5
"""The headline names at most this many tied schedulers; the table has all."""
MOST_NUMBERS = 4
"""The headline gives the capacities of at most this many tied schedulers."""
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def rate_interval(estimate: Estimate) -> str:
    """Format an interval, such as `95% CI 0.41–0.47`."""
    if not estimate.has_interval:
        return NO_INTERVAL
    return f"95% CI {estimate.low:.3g}–{estimate.high:.3g}"


def headline(
    capacities: Sequence[VariantCapacity], best: Sequence[VariantCapacity], context: CapacityContext
) -> str:
    if not best:
        return _no_number(capacities, context)
    open_searches = [c for c in capacities if c.kind is Kind.OPEN and not c.reference]
    sentence = f"{_of_finished(capacities, best, context)}{_without_baseline(capacities, context)}"
    if not open_searches:
        return sentence
    schedulers = counted(len(open_searches), context.noun)
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
    base = next((c for c in capacities if c.variant == context.baseline), None)
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
    first, value = best[0], value_of(best[0])
    contenders = len([c for c in capacities if not c.reference])
    if contenders == 1:
        return (
            f"{first.variant} sustains {first.text()} on {context.machine}"
            f" ({rate_interval(value)}). It is compared with no other {context.noun}."
        )
    everyone = len(best) == contenders
    if not everyone and any(c.variant == context.baseline for c in best):
        return _baseline_wins(best, context)
    if len(best) == 1:
        more = _more(best, context)
        return f"{first.variant} sustains {first.text()} on {context.machine}{more}."
    return _ties(best, context, everyone)


def _ties(best: Sequence[VariantCapacity], context: CapacityContext, everyone: bool) -> str:
    """List tied variants, each with its own number, since a range would read as an interval. Equal
    numbers appear once."""
    count = WORDS[len(best)].capitalize() if len(best) < len(WORDS) else str(len(best))
    who = f"{'The' if undecided(best) else 'All'} {len(best)}" if everyone else count
    tie = f"{who} {context.noun}s {_tie(best, context)}"
    high, low = best[0], best[-1]
    most, least = high.text(), f"{value_of(low).value:.3g}"
    if value_of(low).value >= (1 - EQUAL_WITHIN) * value_of(high).value:
        names = "" if everyone else f": {_names([c.variant for c in best])}"
        more = "" if everyone else _more([high], context)
        return f"{tie}{names}. They sustain about {most} on {context.machine}{more}."
    if len(best) <= MOST_NUMBERS:
        others = [f"{c.variant} {value_of(c).value:.3g}" for c in best[1:]]
        all_of_them = listed([f"{high.variant} sustains {most}", *others])
        more = "" if everyone else _more(best, context)
        return f"{tie}: on {context.machine} {all_of_them}{more}."
    above = "" if everyone else _more([high], context)
    below = "" if not above or low.ratio is None else f" ({times(low.ratio.value)})"
    return (
        f"{tie}: the highest, {high.variant}, sustains {most} on {context.machine}{above}, and the"
        f" lowest, {low.variant}, {least}{below}."
    )


def _more(best: Sequence[VariantCapacity], context: CapacityContext) -> str:
    """Compare with the baseline; a single ratio has its interval."""
    ratios = [c.ratio for c in best if c.ratio is not None]
    if len(ratios) < len(best):
        return ""
    certain = f" ({interval(ratios[0])})" if len(best) == 1 else ""
    return f", {listed([times(r.value) for r in ratios])} as many as {context.baseline}{certain}"


def value_of(capacity: VariantCapacity) -> Estimate:
    value = capacity.load
    return Estimate(math.nan, math.nan, math.nan) if value is None else value


def _baseline_wins(best: Sequence[VariantCapacity], context: CapacityContext) -> str:
    base = next(c for c in best if c.variant == context.baseline)
    sustains = f"{base.variant}, which sustains {base.text()} on {context.machine}"
    if len(best) == 1:
        return f"No {context.noun} sustains more {context.ladder.things} than {sustains}."
    tied = _names(["it", *(c.variant for c in best if c is not base)])
    return f"No {context.noun} sustains more than {sustains}; {tied} {_tie(best, context)}."


def _tie(best: Sequence[VariantCapacity], context: CapacityContext) -> str:
    if undecided(best):
        return f"are not distinguished with {counted(context.seeds, 'seed')}"
    return f"are equal within {EQUAL_WITHIN:.0%}"


def _names(names: Sequence[str]) -> str:
    return listed(names, at_most=MOST_NAMES)


def _no_number(capacities: Sequence[VariantCapacity], context: CapacityContext) -> str:
    capacities = [c for c in capacities if not c.reference]
    kinds, load = {c.kind for c in capacities}, context.ladder
    if not kinds:
        return f"No {context.noun} has a valid capacity: there is no answer."
    if kinds == {Kind.NEVER}:
        least, horizon = load.least, context.horizon
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
                f"No {context.noun} sustains a {load.noun} on {context.machine} with every seed,"
                f" so there is no capacity. The SLO {context.slo} is missed even by {least}:"
                f" {_names(seeds)}. {remedy}"
            )
        return (
            f"No {context.noun} sustains any {load.noun} on {context.machine}: the SLO"
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
        f" {context.noun}s."
    )
