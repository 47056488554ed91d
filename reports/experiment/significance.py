"""Judges numbers of several seeds against bounds, and finds the first arm that is past a threshold.

In: numbers by seed, bounds. Out: whether each is surely within its bounds, surely outside, or
neither.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from reports.experiment.claims import Check
from reports.statistics.bootstrap import CONFIDENCE, Estimate
from reports.statistics.capacities import SeedShare, some_seeds
from reports.statistics.over_seeds import ROUNDING, arithmetic_mean, geometric_mean, low_tail
from servers.basics.phrasing import listed

TAIL = (1 - CONFIDENCE) / 2
"""Probability of an error at each end of an interval."""
EXACT = 0.5
"""Tail of a mean that equals the truth."""


class ClaimOutcome(StrEnum):
    """From the best to the worst."""

    HOLDS = "holds"
    OPEN = "cannot be said"
    FAILS = "does not hold"


def best(outcomes: Iterable[ClaimOutcome]) -> ClaimOutcome:
    return min(outcomes, key=list(ClaimOutcome).index)


def worst(outcomes: Iterable[ClaimOutcome]) -> ClaimOutcome:
    return max(outcomes, key=list(ClaimOutcome).index, default=ClaimOutcome.HOLDS)


class Value(NamedTuple):
    arm: str
    jps: float
    """Rate in jobs per second; 0 in a closed loop."""
    by_seed: Mapping[int, float]
    above: frozenset[int] = frozenset()
    """Seeds with which it is larger than any number, such as the JCT ratio to a variant that has a
    steady state of one that has none."""
    below: frozenset[int] = frozenset()
    """Seeds with which it is smaller than any."""
    neither: frozenset[int] = frozenset()
    """Seeds with which neither side has a number, so that there is nothing to compare."""

    @property
    def seeds(self) -> int:
        """Seeds that say something about the claim."""
        return len(self.by_seed) + len(self.above) + len(self.below)

    @property
    def is_exact(self) -> bool:
        """Whether all seeds have the same number, such as a ratio of 1 where nothing waits."""
        numbers = self.by_seed.values()
        return len(numbers) > 1 and max(numbers) - min(numbers) <= ROUNDING * abs(max(numbers))

    def estimate(self) -> Estimate:
        """The geometric mean over seeds; the arithmetic one if a value is not positive. It covers
        the seeds with a number only."""
        numbers = list(self.by_seed.values())
        positive = all(number > 0 for number in numbers)
        return (geometric_mean if positive else arithmetic_mean)(numbers)

    def low_tail(self, truth: float) -> float:
        return low_tail(self.by_seed.values(), truth)


Bounded = tuple[Value, float | None, float | None]
"""A value, the least and the most that a claim says of it."""


def judged(bounded: Sequence[Bounded], together: ClaimOutcome) -> list[ClaimOutcome]:
    """Judge points, one of which decides the claim if it has the outcome `together`.

    A seed beyond all numbers has no place in a mean. It is no evidence for a claim unless all seeds
    are, and a claim that it contradicts cannot hold."""
    holding, failing = [_p_within(*b) for b in bounded], [_p_outside(*b) for b in bounded]
    hold = _level(holding) if together is ClaimOutcome.HOLDS else TAIL
    fail = _level(failing) if together is ClaimOutcome.FAILS else TAIL
    outcomes = [
        ClaimOutcome.HOLDS if p <= hold else ClaimOutcome.FAILS if q <= fail else ClaimOutcome.OPEN
        for p, q in zip(holding, failing, strict=True)
    ]
    return [_with_extremes(outcome, *b) for outcome, b in zip(outcomes, bounded, strict=True)]


def _with_extremes(
    outcome: ClaimOutcome, value: Value, least: float | None, most: float | None
) -> ClaimOutcome:
    below = len(value.below) if least is not None else 0
    contradicting = below + (len(value.above) if most is not None else 0)
    if not value.by_seed:
        every = {0: ClaimOutcome.HOLDS, value.seeds: ClaimOutcome.FAILS}
        return every.get(contradicting, ClaimOutcome.OPEN)
    return ClaimOutcome.OPEN if contradicting and outcome is ClaimOutcome.HOLDS else outcome


def _p_within(value: Value, least: float | None, most: float | None) -> float:
    """Return the probability of these numbers or clearer ones if the truth is outside the bounds.
    A number that equals a bound is within it. NaN with one seed, which has no probability."""
    below = 0.0 if least is None else 1 - value.low_tail(least)
    above = 0.0 if most is None else value.low_tail(most)
    if math.isnan(below + above):
        return math.nan
    return max(0.0 if tail == EXACT and value.is_exact else tail for tail in (below, above))


def _p_outside(value: Value, least: float | None, most: float | None) -> float:
    """Return the probability of these numbers or clearer ones if the truth is within the bounds."""
    below = value.low_tail(least) if least is not None else 1.0
    above = 1 - value.low_tail(most) if most is not None else 1.0
    return min(below, above)


def _level(probabilities: Sequence[float]) -> float:
    """Return the largest probability that is significant among several (Benjamini and Hochberg,
    1995); below 0 if none is."""
    known = sorted(p for p in probabilities if not math.isnan(p))
    count, ranked = len(known), enumerate(known, 1)
    return max((p for rank, p in ranked if p <= rank * TAIL / count), default=-1.0)


class Knee(NamedTuple):
    value: Value
    """The positions. `below` are the seeds whose knee is at the first arm or before it, and `above`
    those whose knee is after the last arm."""
    first: float
    """Positions of the first and the last arm."""
    last: float

    @property
    def at_bounds(self) -> Value:
        """The positions with all seeds, of which the bounded ones have their bounds."""
        first = dict.fromkeys(self.value.below, self.first)
        last = dict.fromkeys(self.value.above, self.last)
        return Value(self.value.arm, self.value.jps, {**self.value.by_seed, **first, **last})

    @property
    def bounds(self) -> str:
        """The bounds in words, with the seeds that have only them; empty if each has a knee."""
        sides = (
            (self.value.below, f"at most {self.first:g}, the first arm"),
            (self.value.above, f"more than {self.last:g}, the last arm"),
        )
        seeds = self.value.seeds
        return listed([f"{t}{some_seeds(SeedShare(len(s), seeds))}" for s, t in sides if s])


def knees(
    check: Check, values: Sequence[Value], positions: Mapping[str, float | None]
) -> list[Knee]:
    """Return a knee for each load: the position of the first arm past the threshold. A seed has one
    if each arm up to it has a number. `positions` are of the arms that the claim is about."""
    places = [place for place in positions.values() if place is not None]
    found = []
    for jps in dict.fromkeys(v.jps for v in values):
        by_arm = {v.arm: _past(check, v) for v in values if v.jps == jps}
        past = [by_arm.get(arm, {}) for arm in positions]
        arms_of = {seed: _first(seed, past) for seed in sorted(set[int]().union(*past))}
        value = Value(
            *("knee", jps, {s: places[n] for s, n in arms_of.items() if n and n < len(places)}),
            above=frozenset(s for s, n in arms_of.items() if n == len(places)),
            below=frozenset(s for s, n in arms_of.items() if n == 0),
        )
        found.append(Knee(value, places[0], places[-1]))
    return found


def _past(check: Check, value: Value) -> dict[int, bool]:
    """Return whether the number of each seed is past the threshold. One that is larger than any
    number, such as a JCT without a steady state, is above every threshold."""
    extremes = dict.fromkeys(value.above, math.inf) | dict.fromkeys(value.below, -math.inf)
    numbers = {**value.by_seed, **extremes}
    return {seed: check.is_past(n) for seed, n in numbers.items() if not math.isnan(n)}


def _first(seed: int, past: Sequence[Mapping[int, bool]]) -> int | None:
    """Return the index of the first arm that is past, or the number of arms if none is; None if an
    arm before has no number."""
    for index, arm in enumerate(past):
        if seed not in arm:
            return None
        if arm[seed]:
            return index
    return len(past)


def within(own: Estimate, least: float | None, most: float | None) -> ClaimOutcome:
    """Return whether an interval is within bounds."""
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    if not own.has_interval:
        return ClaimOutcome.OPEN
    slack = ROUNDING * abs(own.value)
    if own.low >= low - slack and own.high <= high + slack:
        return ClaimOutcome.HOLDS
    return (
        ClaimOutcome.FAILS
        if own.high < low - slack or own.low > high + slack
        else ClaimOutcome.OPEN
    )
