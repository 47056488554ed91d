"""Reads the results so far of a search for capacities from a run folder.

In: a run whose `sweep.json` has a search. Out: the capacity of each variant, and the rates at which
all variants ran. It uses the functions of the search itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from reports.capacity.estimate import Outcome
from reports.capacity.search import Chain, Idle, Search, idle_of, outcome_of
from reports.capacity.slo import Slo
from reports.loads import RATES, Ladder, ladder_of, least_rate
from reports.metrics.cells import Results, amounts_of
from reports.metrics.goodput import slo_of
from reports.run_folder.read import Run
from reports.statistics.capacities import VariantCapacity, capacities
from servers.records.done import Times

STRIDES_PER_MINUTE = 16_000_000
"""What four fast cores simulate in a minute with the compiled core. Inferred: two slow cores took
276 s for 15 million (fcfs, continuum and lmcache for a day with 3, 6 and 12 seeds, 2026-11-29), and
fast ones are 2.2 to 2.6 times as fast."""
Known = Mapping[Chain, Mapping[float, Outcome]]


@dataclass(frozen=True, slots=True)
class Searched:
    slo: Slo
    ladder: Ladder
    idle_mean_s: float
    """Mean JCT on an idle machine, mean over seeds."""
    found: tuple[VariantCapacity, ...]
    rates: tuple[float, ...]
    """Rates at which all variants ran, or will run."""
    higher: Mapping[float, frozenset[str]] = field(default_factory=dict)
    """Higher rates, with the variants that ran there with all seeds."""
    limits_s: Mapping[str, float] = field(default_factory=dict)
    """The limit of each statistic of the SLO, in seconds, mean over seeds."""

    def at_common_rates(self, results: Results) -> Results:
        """Return the results at the rates where all variants ran."""
        return self._only(results, {})

    def at_shown_rates(self, results: Results) -> Results:
        """Return these, and results at higher rates of variants that ran there with all seeds."""
        return self._only(results, self.higher)

    def _only(self, results: Results, higher: Mapping[float, frozenset[str]]) -> Results:
        if results.cells.empty or not self.rates:
            return results
        amounts, variants = amounts_of(results.cells), results.cells["variant"]
        shown = amounts.isin(self.rates)
        for amount, names in higher.items():
            shown |= (amounts == amount) & variants.isin(names)
        cells = results.cells[shown]
        jobs = results.jobs[results.jobs["cell"].isin(cells["cell"])]
        return replace(results, cells=cells.reset_index(drop=True), jobs=jobs)


def searched(run: Run) -> Searched | None:
    """Return None if the run searches no capacities, or has no finished cell in steady state."""
    slo = slo_of(run)
    if slo is None:
        return None
    known, idle_times_s = _cells(run, slo)
    idle = {seed: idle_of(times_s, slo) for seed, times_s in idle_times_s.items()}
    if not idle:
        return None
    baseline = run.sweep.baseline
    variants = {v.name: v.reference or "" for v in run.sweep.variants}
    given = tuple(amount for amount in run.sweep.amounts if amount is not None)
    ladder = ladder_of(run.sweep.arrivals)
    horizon = run.sweep.horizon
    least = 0.0 if horizon is None else least_rate(horizon.seconds)
    plan = Search(tuple(variants), baseline, tuple(run.sweep.seeds), given, ladder, least)
    found = {
        (chain := Chain(variant, seed)): plan.capacity_of(known.get(chain, {}).values(), machine)
        for variant in variants
        for seed, machine in idle.items()
    }
    return Searched(
        slo,
        ladder,
        fmean(machine.mean_s for machine in idle.values()),
        tuple(capacities(found, variants, baseline, ladder)),
        _shown_rates(known, plan, plan.common_rates(known, idle)),
        _higher(known, plan, idle),
        _limits_s(slo, idle_times_s.values()),
    )


def simulated_minutes(run: Run) -> float:
    """Return about how long all cells take in virtual time. It depends on their results only, so
    that what follows from it is the same on each machine."""
    return sum(cell.done.strides or 1 for cell in run.cells) / STRIDES_PER_MINUTE


def _shown_rates(known: Known, plan: Search, common: tuple[float, ...]) -> tuple[float, ...]:
    """Return the common rates once each variant has a cell there with each seed, and until then the
    rates at which that is so. Only cells at common rates keep their turns."""
    if plan.given and plan.ladder is RATES:
        return plan.given
    chains = [Chain(variant, seed) for variant in plan.variants for seed in plan.seeds]
    complete = set.intersection(*(set(known.get(chain, {})) for chain in chains))
    is_complete = bool(common) and complete.issuperset(common)
    return common if is_complete else tuple(sorted(complete)) or common


def _higher(known: Known, plan: Search, idle: Mapping[int, Idle]) -> dict[float, frozenset[str]]:
    """Return the higher rates with the variants that ran there with all seeds, without rates at
    which none did."""
    found = {
        amount: frozenset(
            variant
            for variant in plan.variants
            if all(amount in known.get(Chain(variant, seed), {}) for seed in plan.seeds)
        )
        for amount in plan.higher_rates(known, idle)
    }
    return {amount: names for amount, names in found.items() if names}


def _limits_s(slo: Slo, idle_times_s: Collection[Times]) -> dict[str, float]:
    limits: dict[str, float] = {}
    for limit in slo.limits:
        value = fmean(limit.limit_s(idle) for idle in idle_times_s)
        limits[limit.name] = min(value, limits.get(limit.name, value))
    return limits


def _cells(run: Run, slo: Slo) -> tuple[Known, Mapping[int, Times]]:
    known: dict[Chain, dict[float, Outcome]] = {}
    idle_times_s: dict[int, Times] = {}
    for cell in run.cells:
        variant, amount, seed = cell.key
        if amount is None or cell.done.idle_times_s is None:
            continue
        idle_times_s.setdefault(seed, cell.done.idle_times_s)
        known.setdefault(Chain(variant, seed), {})[amount] = outcome_of(amount, cell.done, slo)
    return known, idle_times_s
