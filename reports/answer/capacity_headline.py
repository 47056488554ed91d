"""Writes the first sentence about capacities: who wins or ties, how many jobs/s, and the ratio.

In: capacities over seeds, and the winners among them. Out: a text of at most about 36 words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.answer.asked import Asked
from reports.capacity.estimate import Kind
from reports.statistics.bootstrap import NO_INTERVAL, Estimate, interval
from reports.statistics.capacities import EQUAL_WITHIN, VariantCapacity, equal, some_seeds
from servers.basics.phrasing import counted, listed, seconds, times

MOST_NAMES = 5
"""A headline names at most this many schedulers that tie; the table has all."""
MOST_NUMBERS = 4
"""At most this many schedulers that tie have their capacities in the headline."""
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def rate(value: float) -> str:
    return f"{value:.3g} jobs/s"


def rate_interval(estimate: Estimate) -> str:
    """Format an interval, such as `95% CI 0.41–0.47`."""
    if not estimate.has_interval:
        return NO_INTERVAL
    return f"95% CI {estimate.low:.3g}–{estimate.high:.3g}"


def headline(
    found: Sequence[VariantCapacity], best: Sequence[VariantCapacity], asked: Asked
) -> str:
    if not best:
        return _no_number(found, asked)
    open_searches = [each for each in found if each.kind is Kind.OPEN and not each.bound]
    sentence = f"{_of_finished(found, best, asked)}{_without_baseline(found, asked)}"
    if not open_searches:
        return sentence
    schedulers = counted(len(open_searches), asked.noun)
    sentence = f"The search has not finished for {schedulers}. So far: {sentence}"
    if more := [each.variant for each in open_searches if _sustains_more(each, best[0])]:
        verb = "sustains" if len(more) == 1 else "sustain"
        return f"{sentence} {_names(more)} already {verb} a higher rate."
    return sentence


def _sustains_more(each: VariantCapacity, best: VariantCapacity) -> bool:
    """Return whether an unfinished search has found a higher rate than the highest capacity."""
    rates = [found.sustained or 0.0 for found in each.by_seed.values()]
    return best.jobs_per_s is not None and min(rates, default=0.0) > best.jobs_per_s.value


def _without_baseline(found: Sequence[VariantCapacity], asked: Asked) -> str:
    """Say that the baseline sustains no rate, so that there is no ratio to it."""
    base = next((each for each in found if each.variant == asked.baseline), None)
    if base is None or base.kind is not Kind.NEVER:
        return ""
    return f" The baseline {base.variant} sustains no rate{some_seeds(base.never)}."


def _of_finished(
    found: Sequence[VariantCapacity], best: Sequence[VariantCapacity], asked: Asked
) -> str:
    if best[0].kind is Kind.ALWAYS:
        return _always(best, asked)
    first, value = best[0], value_of(best[0])
    contenders = len([each for each in found if not each.bound])
    if contenders == 1:
        return (
            f"{first.variant} sustains {rate(value.value)} on {asked.machine}"
            f" ({rate_interval(value)}). It is compared with no other {asked.noun}."
        )
    everyone = len(best) == contenders
    if not everyone and any(each.variant == asked.baseline for each in best):
        return _baseline_wins(best, asked)
    if len(best) == 1:
        more = _more(best, asked)
        return f"{first.variant} sustains {rate(value.value)} on {asked.machine}{more}."
    return _ties(best, asked, everyone)


def _ties(best: Sequence[VariantCapacity], asked: Asked, everyone: bool) -> str:
    """Name variants that tie, each number with its variant: a range of numbers would read as an
    interval. Equal ones have one number."""
    count = WORDS[len(best)].capitalize() if len(best) < len(WORDS) else str(len(best))
    who = f"{'All' if equal(best) else 'The'} {len(best)}" if everyone else count
    tie = f"{who} {asked.noun}s {_tie(best)}"
    high, low = best[0], best[-1]
    most, least = rate(value_of(high).value), f"{value_of(low).value:.3g}"
    if equal(best):
        names = "" if everyone else f": {_names([each.variant for each in best])}"
        more = "" if everyone else _more([high], asked)
        return f"{tie}{names}. They sustain about {most} on {asked.machine}{more}."
    if len(best) <= MOST_NUMBERS:
        others = [f"{each.variant} {value_of(each).value:.3g}" for each in best[1:]]
        all_of_them = listed([f"{high.variant} sustains {most}", *others])
        more = "" if everyone else _more(best, asked)
        return f"{tie}: on {asked.machine} {all_of_them}{more}."
    above, below = ("", "") if everyone else (_more([each], asked) for each in (high, low))
    return (
        f"{tie}, from {high.variant}, which sustains {most} on {asked.machine}{above}, to"
        f" {low.variant} with {least}{below}."
    )


def _more(best: Sequence[VariantCapacity], asked: Asked) -> str:
    """Compare with the baseline; the ratio of a single variant has its interval."""
    ratios = [each.ratio for each in best if each.ratio is not None]
    if len(ratios) < len(best):
        return ""
    certain = f" ({interval(ratios[0])})" if len(best) == 1 else ""
    return f", {listed([times(r.value) for r in ratios])} as many as {asked.baseline}{certain}"


def value_of(each: VariantCapacity) -> Estimate:
    value = each.jobs_per_s
    return Estimate(math.nan, math.nan, math.nan) if value is None else value


def _baseline_wins(best: Sequence[VariantCapacity], asked: Asked) -> str:
    base = next(each for each in best if each.variant == asked.baseline)
    sustains = f"{base.variant}, which sustains {rate(value_of(base).value)} on {asked.machine}"
    if len(best) == 1:
        return f"No {asked.noun} sustains more jobs than {sustains}."
    tied = _names(["it", *(each.variant for each in best if each is not base)])
    return f"No {asked.noun} sustains more than {sustains}; {tied} {_tie(best)}."


def _tie(best: Sequence[VariantCapacity]) -> str:
    return f"are equal within {EQUAL_WITHIN:.0%}" if equal(best) else "do not differ significantly"


def _names(names: Sequence[str]) -> str:
    return listed(names, at_most=MOST_NAMES)


def _no_number(found: Sequence[VariantCapacity], asked: Asked) -> str:
    kinds = {each.kind for each in found}
    if not kinds:
        return f"No {asked.noun} has a valid capacity: there is no answer."
    if kinds == {Kind.NEVER}:
        if any(each.never.is_mixed for each in found):
            seeds = [
                f"{each.variant} with {each.never.seeds} of {each.never.of} seeds" for each in found
            ]
            return (
                f"No {asked.noun} sustains a rate on {asked.machine} with every seed, so there is"
                f" no capacity. The SLO {asked.slo} is not met even by jobs that hardly ever meet:"
                f" {_names(seeds)}. A higher --slo would give capacities."
            )
        return (
            f"No {asked.noun} sustains any rate on {asked.machine}: the SLO {asked.slo} is not met"
            f" even by jobs that hardly ever meet. Their mean JCT is {seconds(asked.idle_mean_s)}."
        )
    return "The search for capacities has not finished: the same command continues it."


def _always(best: Sequence[VariantCapacity], asked: Asked) -> str:
    rates = [c.sustained for each in best for c in each.by_seed.values() if c.sustained]
    names = [each.variant for each in best]
    verb = "meets" if len(names) == 1 else "meet"
    return (
        f"{_names(names)} {verb} the SLO {asked.slo} at every rate that was tried, up to"
        f" {rate(min(rates))} on {asked.machine}: a stricter --slo would separate {asked.noun}s."
    )
