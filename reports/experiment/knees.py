"""Finds the first arm, in ascending order of positions, whose number is past a threshold.

In: the numbers of arms by seed, and the positions of the arms. Out: a `Knee` for each load. A seed
has a knee if each arm up to it has a number. The first arm bounds the knee of a seed that is past
the threshold there already, and the last arm that of a seed that no arm is past.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reports.experiment.claims import Check
from reports.experiment.significance import Value
from reports.statistics.capacities import SeedShare, some_seeds
from servers.basics.phrasing import listed


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
    """Return a knee for each load. `positions` are those of the arms that the claim is about."""
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
