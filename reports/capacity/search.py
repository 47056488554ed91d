"""Chooses the next cells of a sweep that searches capacities (`--jps auto`, or agents).

In: the outcomes of finished cells. Out: cells that can run at the same time, none at the end. First
the search finds the baseline's capacity with each seed. Each variant then runs at shares of it,
where their JCTs are compared; this also locates its capacity roughly. A variant that easily
sustains all shares runs at higher ones, too. Then its own search continues.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from reports.capacity.chain import next_load
from reports.capacity.estimate import Capacity, Kind, Outcome, capacity
from reports.capacity.slo import Slo
from reports.loads import RATES, Ladder
from servers.records.done import DoneRecord, Times

SHARES = (0.85, 1.2)
"""Shares of the baseline's capacity: a load that it sustains, and one that only better schedulers
sustain. More shares left all capacities as they were."""
HIGHER_SHARES = (1.8,)
"""Shares at which only variants and seeds run that easily sustain all lower ones: their JCTs are
measured up to their capacities, and the cells narrow their searches."""
ROOM = 0.8
"""Share of the limit up to which a load is easily sustained. Machines that come closer to the limit
at 1.2 times the baseline's capacity do not sustain 1.8 times, where cells are dear."""
FIRST_JOBS = 2.0
"""Mean number of jobs on an otherwise idle machine under the load where the first search starts."""


class Chain(NamedTuple):
    """A search for one capacity."""

    variant: str
    seed: int


class SearchPlace(NamedTuple):
    """A cell: a variant under a load with a seed."""

    variant: str
    load: float
    seed: int


@dataclass(frozen=True, slots=True)
class Idle:
    """An idle machine with the jobs of one seed."""

    mean_s: float
    tightest: float
    """Ratio to the tightest limit of the SLO; above 1 the SLO is not met even there."""


Outcomes = Mapping[Chain, Mapping[float, Outcome]]


@dataclass(frozen=True, slots=True)
class Search:
    variants: tuple[str, ...]
    baseline: str
    seeds: tuple[int, ...]
    given: tuple[float, ...] = ()
    """The user's loads, which run in any case. Without rates, and with numbers of agents, which
    are often more than one machine sustains, shares of the baseline's capacity run too."""
    ladder: Ladder = RATES
    least: float = 0.0
    """No lower load is tried."""

    def next_cells(
        self,
        known: Outcomes,
        idle: Mapping[int, Idle],
        failed: Collection[SearchPlace] = (),
    ) -> list[SearchPlace]:
        """Return the cells to run now, the first variant's first. A failed cell ends the
        search that needs it, or all if it is the baseline's, since rates without it would differ
        from a repeated sweep's."""
        first = self._next(
            self._chains(self.baseline, known), self.given, known, idle, None, failed
        )
        if first or any(place.variant == self.baseline for place in failed):
            return first
        start = self.baseline_load(known, idle)
        rates = self.common_rates(known, idle), self.higher_rates(known, idle)
        return [
            place
            for variant in self.variants
            for chain in self._chains(variant, known)
            for place in self._of(chain, rates, start, known, idle, failed)
        ]

    def _chains(self, variant: str, known: Outcomes) -> list[Chain]:
        """Return the searches of a variant, those with the fewest cells first, so that none is left
        for a single worker at the end."""
        chains = [Chain(variant, seed) for seed in self.seeds]
        return sorted(chains, key=lambda chain: len(known.get(chain, ())))

    def _of(
        self,
        chain: Chain,
        rates: tuple[tuple[float, ...], tuple[float, ...]],
        start: float | None,
        known: Outcomes,
        idle: Mapping[int, Idle],
        failed: Collection[SearchPlace],
    ) -> list[SearchPlace]:
        """Return the next cells of a variant and seed, once the baseline's capacity is known: first
        those at the common rates, then one after another those at the higher rates, if it easily
        sustains all lower ones, then those of its search."""
        outcomes, (lower, higher) = known.get(chain, {}), rates
        if above := [load for load in reversed(lower) if load not in outcomes]:
            places = [SearchPlace(chain.variant, load, chain.seed) for load in above]
            return [place for place in places if place not in failed]
        below = list(lower)
        for load in higher:
            if any((outcomes[rate].tightest or math.inf) > ROOM for rate in below):
                break
            if load not in outcomes:
                place = SearchPlace(chain.variant, load, chain.seed)
                return [] if place in failed else [place]
            below.append(load)
        if chain.variant == self.baseline:
            return []
        return self._next([chain], (*lower, *higher), known, idle, start, failed)

    def common_rates(self, known: Outcomes, idle: Mapping[int, Idle]) -> tuple[float, ...]:
        """Return the rates at which all variants run, in ascending order: none before the
        baseline's capacity is known."""
        if self.given and self.ladder is RATES:
            return self.given
        shares = self._shares(SHARES, known, idle)
        return tuple(sorted({*self.given, *shares})) if shares else ()

    def higher_rates(self, known: Outcomes, idle: Mapping[int, Idle]) -> tuple[float, ...]:
        """Return the rates at which only those variants run that easily sustain all lower ones, in
        ascending order: none if the user gave rates of jobs."""
        if self.given and self.ladder is RATES:
            return ()
        return self._shares(HIGHER_SHARES, known, idle)

    def _shares(
        self, shares: Collection[float], known: Outcomes, idle: Mapping[int, Idle]
    ) -> tuple[float, ...]:
        at = self.baseline_load(known, idle)
        if at is None:
            return ()
        return tuple(sorted({self.ladder.nearest_rung(share * at) for share in shares}))

    def baseline_load(self, known: Outcomes, idle: Mapping[int, Idle]) -> float | None:
        """Return the geometric mean of the baseline's capacities, over the seeds that have one."""
        found = [
            each.load
            for seed in self.seeds
            if (each := self._baseline_capacity(known, idle, seed)) and each.kind is Kind.FOUND
        ]
        return math.exp(sum(map(math.log, found)) / len(found)) if found else None

    def _baseline_capacity(
        self, known: Outcomes, idle: Mapping[int, Idle], seed: int
    ) -> Capacity | None:
        if seed not in idle:
            return None
        outcomes = known.get(Chain(self.baseline, seed), {})
        path = self._path(outcomes, self.given, idle[seed], None)
        return path if isinstance(path, Capacity) else None

    def _next(
        self,
        chains: Collection[Chain],
        given: Collection[float],
        known: Outcomes,
        idle: Mapping[int, Idle],
        start: float | None,
        failed: Collection[SearchPlace],
    ) -> list[SearchPlace]:
        places: list[SearchPlace] = []
        for chain in chains:
            machine = idle.get(chain.seed)
            if machine is None or machine.tightest > 1:
                continue
            if any(SearchPlace(chain.variant, load, chain.seed) in failed for load in given):
                continue
            load = self._path(known.get(chain, {}), given, machine, start)
            if not isinstance(load, Capacity):
                places.append(SearchPlace(chain.variant, load, chain.seed))
        return [place for place in places if place not in failed]

    def _path(
        self,
        outcomes: Mapping[float, Outcome],
        given: Collection[float],
        idle: Idle,
        start: float | None,
    ) -> float | Capacity:
        ran = [load for load in given if load in outcomes]
        first = self.ladder.with_jobs(FIRST_JOBS, idle.mean_s) if start is None else start
        ends = self.ladder.ends(idle.mean_s, self.least)
        return next_load(outcomes, ran, first, ends, idle.tightest)

    def capacity_of(self, outcomes: Collection[Outcome], idle: Idle) -> Capacity:
        """Return the capacity of one variant and seed from all cells of a run folder."""
        if idle.tightest > 1:
            return Capacity(Kind.NEVER, math.nan, None, None)
        return capacity(outcomes, self.ladder.ends(idle.mean_s, self.least))


def outcome_of(load: float, done: DoneRecord, slo: Slo) -> Outcome:
    times, idle = done.times_s, done.idle_times_s
    if done.unstable is not None or times is None or idle is None:
        return Outcome(load, None)
    limit = slo.tightest_limit(times, idle)
    return Outcome(load, limit.share_of(times, idle), str(limit))


def idle_of(idle_times_s: Times, slo: Slo) -> Idle:
    return Idle(idle_times_s.jct.mean, slo.tightest(idle_times_s, idle_times_s))
