"""Reads which machines serve a number of agents, from sweeps that searched capacities in agents.

In: the run folders of a plan. Out: a `Plan` per folder and policy, whole machines that meet the
SLO with every seed and probably with other jobs, and the sentences of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from reports.answer.capacity_context import HOURS_PER_MONTH, price_of
from reports.answer.fails_first import NO_STEADY_STATE
from reports.answer.left_out import valid_capacities
from reports.answer.provenance import price_in_words
from reports.capacity.estimate import Kind
from reports.capacity.slo import Limit, Slo
from reports.loads import MOST_JOBS
from reports.metrics.cells import collect
from reports.run_folder.read import Run, load_run
from reports.statistics.capacities import VariantCapacity
from reports.statistics.searched import searched
from servers.basics.phrasing import counted, gpus_in_words, listed, seconds
from servers.records.sweep import SweepRecord

P95_JCT = Limit("p95", 1, "s")
"""The statistic that is drawn besides the SLO's."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Machines that serve the agents with one policy. A machine is all GPUs of one sweep."""

    sweep: SweepRecord
    folder: Path
    policy: str
    offload_gb: float | None
    """None if the policy does not offload."""
    asked: int
    with_every_seed: int
    """Agents that one machine serves with the jobs of every seed."""
    limit: str | None
    """What fails first with more agents: a limit of the SLO, or `NO_STEADY_STATE`; None if one
    machine sustains the most that a search tries."""
    times: Mapping[Limit, float]
    """`statistics_of` the SLO with `each` agents, mean over seeds, in seconds, and of a speed in
    seconds per token. Empty if that cell has not run yet."""
    predicted: int | None = None
    """Agents that one machine serves with a probability of 95% with jobs of another seed; None with
    one seed, and if a capacity is no number."""

    @property
    def serves(self) -> int:
        """Agents that one machine serves: the jobs of a few seeds may all be easy ones."""
        if self.predicted is None:
            return self.with_every_seed
        return min(self.predicted, self.with_every_seed)

    @property
    def machines(self) -> int:
        return math.ceil(self.asked / self.serves)

    @property
    def each(self) -> int:
        """Agents on the fullest machine."""
        return math.ceil(self.asked / self.machines)

    @property
    def usd_per_month(self) -> float:
        return self.machines * price_of(self.sweep).usd_per_month

    @property
    def could_serve(self) -> int:
        return self.machines * self.serves

    @property
    def machine(self) -> str:
        """The machine in words, such as `2 x h100`."""
        return gpus_in_words(self.sweep.hardware, self.sweep.gpus)

    @property
    def name(self) -> str:
        tier = f", {self.offload_gb:g} GB of DRAM" if self.offload_gb else ""
        return f"{self.sweep.model} on {self.machine} with {self.policy}{tier}"

    def document(self) -> dict[str, Any]:
        return {
            "model": self.sweep.model,
            "hardware": self.sweep.hardware,
            "gpus_per_machine": self.sweep.gpus,
            "policy": self.policy,
            "offload_gb": self.offload_gb,
            "machines": self.machines,
            "usd_per_month": self.usd_per_month,
            "agents_per_machine": self.each,
            "could_serve": self.could_serve,
            "could_serve_with_every_seed": self.machines * self.with_every_seed,
            "fails_first": self.limit,
            "statistics": {each.name: shown(each, time_s) for each, time_s in self.times.items()},
            "folder": self.folder.name,
        }


def statistics_of(slo: Slo) -> tuple[Limit, ...]:
    """Return the statistics that the SLO limits and P95 JCT, each once. The first is what plans are
    compared by, besides their cost: the JCT of sessions is mostly tools and pauses."""
    by_name = {limit.name: limit for limit in (*slo.limits, P95_JCT)}
    return tuple(by_name.values())


def read_plans(folder: Path, agents: int) -> tuple[list[Plan], list[str]]:
    """Return a plan per policy that serves at least one agent on a machine, and why others have
    none. References are left out, since they cannot be deployed."""
    run = load_run(folder)
    search = searched(run)
    if search is None:
        return [], [f"{folder.name}: no cell has finished"]
    found: list[Plan] = []
    valid, invalid = valid_capacities(search.found, collect(run), run.sweep.baseline)
    without = [f"{folder.name}: {sentence}" for sentence in invalid]
    tiers = {each.name: each.offload for each in run.sweep.variants}
    for capacity in valid:
        if capacity.reference:
            continue
        most = [int(each.sustained or 0) for each in capacity.by_seed.values()]
        if capacity.kind is Kind.OPEN or len(most) < len(run.sweep.seeds):
            without.append(f"{folder.name}: the search has not finished for {capacity.variant}")
            continue
        tier = tiers[capacity.variant]
        plan = Plan(
            run.sweep,
            folder,
            capacity.variant,
            None if tier is None else tier.dram_gb,
            agents,
            min(most),
            capacity.missed[0][0] or NO_STEADY_STATE if capacity.missed else None,
            {},
            None if capacity.on_most is None else int(capacity.on_most),
        )
        if not plan.serves:
            without.append(f"{plan.name}: {_fails(plan, capacity)}")
            continue
        found.append(_with_times(plan, run, search.slo))
    return found, without


def _fails(plan: Plan, capacity: VariantCapacity) -> str:
    if plan.with_every_seed:
        return (
            "may fail with one agent, since the capacities of seeds differ much; use more --seeds"
        )
    return f"fails with one agent: {_missed(capacity)}"


def _missed(capacity: VariantCapacity) -> str:
    """Return what one agent misses, with the seeds with which it does."""
    never = [each for each in capacity.by_seed.values() if each.kind is Kind.NEVER]
    on_idle = "the SLO is missed even on an idle machine"
    limits = {each.limit or NO_STEADY_STATE if each.not_sustained else on_idle for each in never}
    return ", ".join(sorted(limits))


def _with_times(plan: Plan, run: Run, slo: Slo) -> Plan:
    key = (plan.policy, float(plan.each))
    times = [c.done.times_s for c in run.cells if c.key[:2] == key and c.done.times_s]
    if len(times) < len(run.sweep.seeds):
        return plan
    return replace(plan, times={limit: fmean(map(limit.of, times)) for limit in statistics_of(slo)})


def front(found: Sequence[Plan], value: Callable[[Plan], float]) -> list[Plan]:
    """Return the Pareto front: the plans that no other plan equals or beats in both cost and
    `value`, the cheapest first."""
    best: list[Plan] = []
    for plan in sorted(found, key=lambda p: (p.usd_per_month, value(p))):
        if not best or value(plan) < value(best[-1]):
            best.append(plan)
    return best


def shown(limit: Limit, time_s: float) -> float:
    """Return a statistic as SLOs are written: a time in seconds, or a speed in tokens/s."""
    return 1 / time_s if limit.is_speed and time_s else time_s


def in_words(limit: Limit, time_s: float) -> str:
    """Return a statistic to be shown with its title, which has the unit of a speed."""
    value = shown(limit, time_s)
    return f"{value:.3g}" if limit.is_speed else seconds(value)


def headline(found: Sequence[Plan], agents: int, slo: Slo) -> str:
    if not found:
        return f"No plan that was searched meets {slo} for {counted(agents, 'agent')}."
    best = cheapest(found)
    return (
        f"{counted(agents, 'agent')}: the cheapest plan that meets the SLO is"
        f" {counted(best.machines, 'machine')} of {best.name}, for {best.usd_per_month:,.0f} USD"
        " per month."
    )


def cheapest(found: Sequence[Plan]) -> Plan:
    """Return the cheapest plan; of equal ones the one that could serve most agents."""
    return min(found, key=lambda p: (p.usd_per_month, -p.could_serve))


def findings(found: Sequence[Plan], slo: Slo) -> list[str]:
    """Return sentences on the cheapest plan: its margin, what fails first, and its latencies."""
    if not found:
        return []
    best = cheapest(found)
    more = best.could_serve / best.asked - 1
    margin = f"{more:.0%} more than asked" if more else "what was asked, without a margin"
    with_each = ", ".join(
        f"{limit.title} {in_words(limit, time_s)}" for limit, time_s in best.times.items()
    )
    sentences = [
        f"{_serves(best)}. That is {margin}. {_with_more(best)}",
        *(
            [f"With {counted(best.each, 'agent')} on each machine: {with_each}."]
            if with_each
            else []
        ),
        f"A month has {HOURS_PER_MONTH} hours; a GPU with its share of the host costs"
        f" {price_in_words(best.sweep.price)}. More DRAM costs nothing extra here.",
    ]
    if len(best.sweep.seeds) == 1:
        sentences[1:1] = [
            "One seed: with other jobs this plan may miss the SLO. Use --seeds 1..3 or more."
        ]
    first = statistics_of(slo)[0]
    faster = front(found, lambda p: p.times.get(first, math.inf))[1:]
    if faster:
        last = faster[-1]
        sentences.append(
            f"The best {first.title}, {in_words(first, last.times[first])}, has"
            f" {counted(last.machines, 'machine')} of {last.name}, for"
            f" {last.usd_per_month:,.0f} USD per month."
        )
    if relative := [str(limit) for limit in slo.limits if limit.unit == "x"]:
        one = len(relative) == 1
        sentences.append(
            f"{listed(relative)} {'is' if one else 'are'} relative to each idle machine, and"
            f" {'asks' if one else 'ask'} more of a faster one. Limits in seconds or tokens/s ask"
            " the same of all."
        )
    return sentences


def _serves(plan: Plan) -> str:
    if plan.predicted is None:
        bound = "most" if plan.limit else "least"
        return f"It serves at {bound} {counted(plan.could_serve, 'agent')} with every seed"
    seeds = len(plan.sweep.seeds)
    each = "it" if plan.machines == 1 else "each machine"
    return (
        f"It serves {counted(plan.could_serve, 'agent')}: with a probability of 95% {each} serves"
        f" {plan.serves:,} with other jobs, predicted from {seeds} seeds, and"
        f" {plan.with_every_seed:,} with the jobs of each seed"
    )


def fails_first(plan: Plan) -> str:
    """Return what fails first in words."""
    return plan.limit or f"nothing up to {MOST_JOBS:,} agents each"


def _with_more(plan: Plan) -> str:
    if plan.limit is None:
        return f"No search tries more than {MOST_JOBS:,} agents on one machine."
    if plan.limit == NO_STEADY_STATE:
        return "With more, there is no steady state."
    return f"With more, {plan.limit} is missed first."
