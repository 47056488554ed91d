"""Searches the machines of a plan for a number of agents: one sweep for each combination of
hardware, model, GPUs and offload tier, the cheapest machines first.

In: settings with lists, and the number of agents. Out: an ordinary run folder for each combination,
and its plans. Combinations are left out that cannot meet the SLO, or provably cannot be cheaper.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec.json import encode

from harness.console import print_message
from harness.load.machines import each_machine
from harness.load.option import elements
from harness.load.prices import own_price, parse_prices, price_of_gpu
from harness.load.settings import Execution, SweepSettings
from harness.sweep.folder import SWEEP, without_prices
from harness.sweep.plan import ONE, SweepPlan
from harness.sweep.resolve import resolve
from harness.sweep.run import SloNotReached, run_sweeps
from reports.answer.capacity_context import MachinePrice
from reports.compare.plans import Plan, read_plans
from reports.run_folder.find import RUNS
from reports.run_folder.members import MEMBERS
from reports.run_folder.read import read_sweep
from servers.basics.errors import CannotShare, DoesNotFit, InvalidInput, NoTier
from servers.basics.phrasing import counted, gpus_in_words, listed
from servers.basics.text import slug
from servers.variants import variants

MOST_AGENTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """The sweep of one machine: all policies on one combination."""

    plan: SweepPlan
    offload_gb: float | None
    usd_per_month: float
    """Cost of one machine, the least that a plan with it can cost."""

    @property
    def gpus(self) -> int:
        return self.plan.engine.settings().gpus or 1

    @property
    def label(self) -> str:
        engine = self.plan.engine
        tier = f" with {self.offload_gb:g} GB of DRAM" if self.offload_gb else ""
        return f"{engine.model} on {gpus_in_words(engine.hardware, self.gpus)}{tier}"

    @property
    def folder(self) -> str:
        engine = self.plan.engine
        tier = f"_{self.offload_gb:g}gb" if self.offload_gb else ""
        return f"{slug(engine.model)}_{self.gpus}-{slug(engine.hardware)}{tier}"


@dataclass(slots=True)
class PlanSearches:
    """What a search for plans found."""

    plans: list[Plan] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Sentences: what does not fit, cannot meet the SLO, misses it, or was not searched."""
    failed: dict[str, str] = field(default_factory=dict)
    """Errors of failed cells by name."""


def parse_wanted(text: str) -> int:
    agents = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= agents <= MOST_AGENTS:
        raise InvalidInput(
            f"--agents {text}: must be a whole number of agents from 1 to {MOST_AGENTS:,}"
        )
    return agents


def parse_numbers(option: str, text: str | None, least: int) -> tuple[int | None, ...]:
    """Return the numbers of a list; (None,) without one, for the default."""
    if text is None:
        return (None,)
    parts = [part.strip() for part in text.split(",")]
    if not all(p.isascii() and p.isdigit() and int(p) >= least for p in parts):
        raise InvalidInput(
            f"{option} {text}: give whole numbers of at least {least}, such as 1,2,4"
        )
    return tuple(sorted({int(part) for part in parts}))


def candidates(
    settings: SweepSettings, gpus: Sequence[int | None], offload_gb: Sequence[int | None]
) -> tuple[list[Candidate], list[str]]:
    """Return the combinations, the cheapest first, and why others are left out."""
    plans: list[tuple[SweepPlan, float | None]] = []
    left_out: list[str] = []
    for each in each_machine(settings):
        for count in gpus:
            for policies, size in _tiers(settings.policies, offload_gb):
                machine = replace(each.machine, gpus=count, offload_gb=size)
                one = replace(each, policies=policies, machine=machine, price=None)
                try:
                    plans.append(_resolve(one, left_out))
                except (DoesNotFit, CannotShare, NoTier) as error:
                    left_out.append(str(error))
    left_out = list(dict.fromkeys(left_out))
    named = [*elements(settings.machine.hardware), *(plan.engine.hardware for plan, _ in plans)]
    prices = parse_prices(settings.price, named)
    found = [_candidate(plan, size, prices) for plan, size in plans]
    least = min((len(c.plan.workload.left_out) for c in found), default=0)
    kept: dict[str, Candidate] = {}
    for candidate in sorted(found, key=lambda c: (c.usd_per_month, c.gpus)):
        missing = len(candidate.plan.workload.left_out)
        if missing > least:
            jobs = f"{counted(missing, 'job')} exceed its memory or context, elsewhere {least}"
            left_out.append(f"{candidate.label}: {jobs}")
        else:
            kept.setdefault(candidate.folder, candidate)
    return list(kept.values()), left_out


def _resolve(settings: SweepSettings, left_out: list[str]) -> tuple[SweepPlan, float | None]:
    """Return the sweep of one machine with the size of its tier. A model whose layers keep states
    has no tier: the policies that offload are left out, unless no other policy remains."""
    try:
        return resolve(settings), settings.machine.offload_gb
    except NoTier as error:
        plain = [v.name for v in variants(settings.policies) if v.offload is None]
        if not plain:
            raise
        left_out.append(str(error).partition(";")[0])
        machine = replace(settings.machine, offload_gb=None)
        return resolve(replace(settings, policies=",".join(plain), machine=machine)), None


def _candidate(plan: SweepPlan, offload_gb: float | None, prices: Mapping[str, float]) -> Candidate:
    engine, machine = plan.engine, plan.engine.settings()
    price = price_of_gpu(prices, engine.hardware, machine.gpu)
    if price is None:
        raise InvalidInput(
            f"--hardware {engine.hardware}: has no price; add --price {engine.hardware}=USD"
        )
    plan = replace(plan, price=price, settings=replace(plan.settings, price=own_price(price)))
    month = MachinePrice(machine.gpus or 1, price.usd_per_gpu_hour).usd_per_month
    return Candidate(plan, offload_gb, month)


def _tiers(policies: str, sizes: Sequence[int | None]) -> Iterator[tuple[str, int | None]]:
    """Yield the policies with the size of their tier. With several sizes, policies without a tier
    run once, and those with one at each size above 0; with 0 alone, only the former."""
    if len(sizes) == 1 and sizes[0] != 0:
        yield policies, sizes[0]
        return
    chosen = variants(policies)
    plain = [v.name for v in chosen if v.offload is None]
    if not plain and not any(sizes):
        raise InvalidInput(
            f"--offload-gb 0: all of --policies {policies} offload; add a policy without a tier, or"
            " a size above 0"
        )
    if plain:
        yield ",".join(plain), None
    if offloading := [v.name for v in chosen if v.offload is not None]:
        yield from ((",".join(offloading), size) for size in sizes if size)


def default_folder(found: Sequence[Candidate], agents: int) -> Path:
    """Return a readable name that ends with a hash of the plans."""
    ordered = sorted(found, key=lambda candidate: candidate.folder)
    plans = [without_prices(candidate.plan.sweep_record()) for candidate in ordered]
    digest = hashlib.sha256(encode([agents, *plans])).hexdigest()[:8]
    return RUNS / f"plan_{slug(ordered[0].plan.workload.name)}_{agents}-agents_{digest}"


def refuse_run(folder: Path) -> None:
    """Raise InvalidInput for the folder of a sweep."""
    if any((folder / name).is_file() for name in (SWEEP, MEMBERS)):
        raise InvalidInput(
            f"--out {folder}: is the run folder of a sweep; name another folder for the plan"
        )


def search(
    found: Sequence[Candidate],
    agents: int,
    folder: Path,
    execution: Execution,
    arguments: Sequence[str] = (),
) -> PlanSearches:
    """Run the sweeps. The same search again resumes."""
    result = PlanSearches()
    for number, candidate in enumerate(found, 1):
        if by := _as_cheap(candidate, result.plans):
            result.left_out.append(
                f"{candidate.label}: not searched, because one machine costs"
                f" {candidate.usd_per_month:,.0f} USD per month, and {by.machine} meets the SLO"
                f" for {by.usd_per_month:,.0f}; it may be faster, but not cheaper"
            )
            continue
        print_message(f"machine {number} of {len(found)}: {candidate.label}")
        path = folder / candidate.folder
        loads = _loads_of(path)
        try:
            result.failed |= _run(candidate.plan, loads, path, execution, arguments)
        except SloNotReached as error:
            result.left_out.append(f"{candidate.label}: {error}")
            continue
        holding, without = read_plans(path, agents)
        # Cells that are added may move a capacity, and with it the agents on each machine.
        while more := {float(plan.each) for plan in holding}.difference(loads):
            added = listed([counted(int(each), "agent") for each in sorted(more)])
            print_message(f"adds cells with {added}, because the plan needs their latencies")
            loads = tuple(sorted({*loads, *more}))
            result.failed |= _run(candidate.plan, loads, path, execution, arguments)
            holding, without = read_plans(path, agents)
        result.plans += holding
        result.left_out += without
    return result


def _as_cheap(candidate: Candidate, found: Sequence[Plan]) -> Plan | None:
    """Return a plan of the same hardware and model with fewer GPUs per machine that costs at most
    as much as a single machine of the candidate."""
    engine = candidate.plan.engine
    same = (
        plan
        for plan in found
        if (plan.sweep.hardware, plan.sweep.model) == (engine.hardware, engine.model)
        and (plan.sweep.gpus or 1) < candidate.gpus
        and plan.usd_per_month <= candidate.usd_per_month
    )
    return min(same, key=lambda plan: plan.usd_per_month, default=None)


def _loads_of(path: Path) -> tuple[float, ...]:
    if not (path / SWEEP).is_file():
        return ()
    return tuple(amount for amount in read_sweep(path).amounts if amount is not None)


def _run(
    plan: SweepPlan,
    loads: Sequence[float],
    path: Path,
    execution: Execution,
    arguments: Sequence[str],
) -> Mapping[str, str]:
    """Run the sweep, with cells at these numbers of agents. Return the errors of failed cells."""
    if loads:
        text = ",".join(f"{load:g}" for load in loads)
        settings = replace(plan.settings, load=replace(plan.settings.load, agents=text))
        plan = replace(plan, settings=settings, amounts=tuple(loads))
    outcome = run_sweeps({ONE: plan}, path, execution, arguments=arguments)
    return {f"{path.name}/{cell}": why for cell, why in outcome.failed.items()}
