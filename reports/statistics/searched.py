"""Reads the results so far of a search for capacities from a run folder.

In: a run whose `sweep.json` has a search. Out: the capacity of each variant, and the rates at which
all variants ran. It uses the functions of the search itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from reports.capacity.estimate import Outcome
from reports.capacity.outcomes import idle_of, outcome_of
from reports.capacity.search import Chain, Idle, Search, chain_capacity
from reports.capacity.slo import Slo, parse_slo
from reports.metrics.cells import Results
from reports.run_folder.read import Run
from reports.statistics.capacities import VariantCapacity, capacities
from servers.basics.errors import InvalidInput, InvalidRunFolder
from servers.records.done import Jct

Known = Mapping[Chain, Mapping[float, Outcome]]


@dataclass(frozen=True, slots=True)
class Searched:
    slo: Slo
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
        rates, variants = results.cells["jps"], results.cells["variant"]
        shown = rates.isin(self.rates)
        for jps, names in higher.items():
            shown |= (rates == jps) & variants.isin(names)
        cells = results.cells[shown]
        jobs = results.jobs[results.jobs["cell"].isin(cells["cell"])]
        return replace(results, cells=cells.reset_index(drop=True), jobs=jobs)


def searched(run: Run) -> Searched | None:
    """Return None if the run searches no capacities, or has no finished cell in steady state."""
    search = run.sweep.search
    if not search:
        return None
    try:
        slo = parse_slo(search.slo)
    except InvalidInput as error:
        reason = str(error).removeprefix("--slo ")
        raise InvalidRunFolder(f"{run.folder}/sweep.json: search.slo {reason}") from None
    known, idle, idle_jct_s = _cells(run, slo)
    if not idle:
        return None
    baseline = run.sweep.baseline
    variants = {v.name: bool(v.bound) for v in run.sweep.variants}
    given = tuple(jps for jps in run.sweep.jps or () if jps is not None)
    plan = Search(tuple(variants), baseline, tuple(run.sweep.seeds), given)
    found = {
        (chain := Chain(variant, seed)): chain_capacity(known.get(chain, {}).values(), machine)
        for variant in variants
        for seed, machine in idle.items()
    }
    return Searched(
        slo,
        fmean(machine.mean_s for machine in idle.values()),
        tuple(capacities(found, variants, baseline)),
        given or _shown_rates(known, plan, plan.common_rates(known, idle)),
        _higher(known, plan, idle),
        _limits_s(slo, idle_jct_s.values()),
    )


def _shown_rates(known: Known, plan: Search, common: tuple[float, ...]) -> tuple[float, ...]:
    """Return the common rates once each variant has a cell there with each seed, and until then the
    rates at which that is so. Only cells at common rates keep their turns."""
    chains = [Chain(variant, seed) for variant in plan.variants for seed in plan.seeds]
    complete = set.intersection(*(set(known.get(chain, {})) for chain in chains))
    is_complete = bool(common) and complete.issuperset(common)
    return common if is_complete else tuple(sorted(complete)) or common


def _higher(known: Known, plan: Search, idle: Mapping[int, Idle]) -> dict[float, frozenset[str]]:
    """Return the higher rates with the variants that ran there with all seeds, without rates at
    which none did."""
    found = {
        jps: frozenset(
            variant
            for variant in plan.variants
            if all(jps in known.get(Chain(variant, seed), {}) for seed in plan.seeds)
        )
        for jps in plan.higher_rates(known, idle)
    }
    return {jps: names for jps, names in found.items() if names}


def _limits_s(slo: Slo, idle_jct_s: Collection[Jct]) -> dict[str, float]:
    limits: dict[str, float] = {}
    for limit in slo.limits:
        value = fmean(limit.limit_s(idle) for idle in idle_jct_s)
        limits[limit.statistic] = min(value, limits.get(limit.statistic, value))
    return limits


def _cells(run: Run, slo: Slo) -> tuple[Known, Mapping[int, Idle], Mapping[int, Jct]]:
    """Return the outcomes, the idle machine of each seed, and its JCT by statistic."""
    known: dict[Chain, dict[float, Outcome]] = {}
    idle: dict[int, Idle] = {}
    idle_jct_s: dict[int, Jct] = {}
    for cell in run.cells:
        variant, jps, seed = cell.key
        if jps is None or cell.done.idle_jct_s is None:
            continue
        idle_jct_s.setdefault(seed, cell.done.idle_jct_s)
        idle.setdefault(seed, idle_of(cell.done.idle_jct_s, slo))
        known.setdefault(Chain(variant, seed), {})[jps] = outcome_of(jps, cell.done, slo)
    return known, idle, idle_jct_s
