"""Checks the settings of a sweep before the first cell runs.

In: `SweepSettings`. Out: a `SweepPlan` for each machine. Invalid settings raise `InvalidInput`
here, not in a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING

from harness.engines.base import EngineKind, Resolved, resolve_engine
from harness.load.arrivals import Arrivals, parse_arrivals, roots, without_file
from harness.load.background import Background, load_background, refuse_same_ids
from harness.load.horizon import (
    DEFAULT_HORIZON,
    WHOLE_DAY,
    parse_horizon,
    refuse_part_of_day,
    refuse_rare_jobs,
)
from harness.load.machines import refuse_list
from harness.load.prices import own_price, parse_api_price, parse_prices, price_of_gpu
from harness.load.rates import parse_agents, parse_rates, parse_seeds
from harness.load.scenario import chosen_scenario, refuse_single_requests
from harness.load.settings import DEFAULT_SEEDS, Agents, Load, Prompts, SweepSettings
from harness.load.stream import are_alike
from harness.load.workload import Longest, Workload, are_recorded, load_workload
from harness.sweep.fingerprint import code_sha256
from harness.sweep.plan import SweepPlan
from reports.capacity.slo import DEFAULT_SLO, DEFAULT_SLO_OF_AGENTS, Slo, parse_slo
from servers.basics.errors import DoesNotFit, InvalidInput
from servers.basics.nearest import did_you_mean
from servers.basics.text import slug
from servers.policies.base import UNLIMITED_KV
from servers.records.settings import HorizonRecord, ScenarioRecord
from servers.variants import Variant, second_arm, variant

if TYPE_CHECKING:
    from harness.load.agent_plan import AgentPlan

DEFAULT_JPS = "0.05..0.9"
DEFAULT_BASELINES = ("fcfs", "fcfs@sticky")
DEFAULT_SEEDS_ONCE = "1"
AUTO = "auto"


def resolve(settings: SweepSettings) -> SweepPlan:
    refuse_list(settings.machine)
    (plan,) = resolve_each([settings])
    return plan


def resolve_each(settings: Sequence[SweepSettings]) -> list[SweepPlan]:
    """Return a plan for each of these settings, which differ in the machine only.

    All plans have the same programs: those that fit every machine.
    """
    first = settings[0]
    scenario = chosen_scenario(first)
    seeds = parse_seeds(first.seeds) if first.seeds else ()
    arrivals = parse_arrivals(first.load.process)
    if first.load.background is not None and first.agents != Agents():
        raise InvalidInput(
            f"--background {first.load.background}: is replayed alongside recorded programs, "
            "not real agents; remove it"
        )
    engines = _engines(settings)
    refuse_same_folder([variant.name for variant in engines[0][0]])
    kind = engines[0][1].kind
    if arrivals.takes_agents and not kind.is_virtual and scenario is None:
        raise InvalidInput(
            f"--arrivals {first.load.process}: is for virtual time; on a live server use "
            "--arrivals closed:N, a fixed set of jobs with N in flight"
        )
    fixed = fixed_by(first.load, kind)
    steady = not fixed
    slo, *_ = _slo_and_loads(first, kind, fixed)  # before traces are read
    prices = parse_prices(first.price, [engine.hardware for _, engine, _ in engines])
    if first.api_price is not None and slo is None:
        raise InvalidInput(
            f"--api-price {first.api_price}: needs a search for capacities; remove --no-capacity "
            "and --once, or --api-price"
        )
    api_price = parse_api_price(first.api_price)
    baseline = _baseline(first.baseline, engines[0][0])
    engines = _with_second_arm(engines, baseline, first)
    longest = _shortest([engine.longest for _, engine, _ in engines])
    agents, workload = _load(first, longest, kind, steady)
    if scenario is not None:
        refuse_single_requests(scenario, workload)
    first = replace(first, load=_with_arrivals(first, kind, workload))
    arrivals = parse_arrivals(first.load.process)
    background = _background(first, longest, workload)
    slo, amounts, horizon = _slo_and_loads(first, kind, fixed)
    seeds = seeds or parse_seeds(_default_seeds(scenario, steady))
    if len(seeds) > 1 and fixed and kind.is_virtual and not (background or agents):
        _refuse_equal_seeds(first, arrivals, workload)
    if amounts and not arrivals.takes_agents:
        arrivals.draw(
            workload.programs, amounts[0], seeds[0]
        )  # Raises if a recorded one is missing.
    chosen, engine, left_out = engines[0]
    plan = SweepPlan(
        settings=first,
        variants=chosen,
        left_out=left_out,
        amounts=amounts,
        seeds=seeds,
        arrivals=arrivals,
        arrivals_text=first.load.process,
        engine=engine,
        workload=workload,
        baseline=baseline,
        code_sha256=code_sha256(engine, workload, arrivals, background, agents=agents),
        agents=agents,
        background=background,
        horizon=horizon,
        scenario=scenario,
        steady=steady,
        slo=slo,
        api_price=api_price,
    )
    return [
        replace(
            plan,
            settings=replace(each, load=first.load, price=own_price(price)),
            engine=engine,
            variants=chosen,
            left_out=left_out,
            price=price,
        )
        for each, (chosen, engine, left_out) in zip(settings, engines, strict=True)
        for price in [price_of_gpu(prices, engine.hardware, engine.settings().gpu)]
    ]


def _with_arrivals(settings: SweepSettings, kind: EngineKind, workload: Workload) -> Load:
    """Return the load with its arrival process. How many agents each policy sustains is the
    question of recorded sessions, unless an option asks for rates, a fixed set, or no search.
    Single requests are no sessions."""
    load = settings.load
    asks_for_other = load.arrivals or load.once or load.horizon or load.burst or settings.jps
    searches_agents = (
        kind.is_virtual
        and not (asks_for_other or settings.no_capacity)
        and are_recorded(load)
        and workload.turns > len(workload.programs)
    )
    return replace(load, arrivals="agents" if searches_agents else without_file(load.process))


def _engines(settings: Sequence[SweepSettings]) -> list[Resolved]:
    """Raise DoesNotFit with all machines on which the model does not fit."""
    engines: list[Resolved] = []
    too_large: list[str] = []
    for each in settings:
        try:
            engines.append(resolve_engine(each))
        except DoesNotFit as error:
            too_large.append(str(error))
    if too_large:
        more = "; or remove what does not fit from --hardware or --model"
        raise DoesNotFit("; ".join(too_large) + more * (len(settings) > 1))
    return engines


def _with_second_arm(
    engines: Sequence[Resolved], baseline: str, settings: SweepSettings
) -> list[Resolved]:
    """Append the baseline under another name, if `--aa` asks for it."""
    again = "--aa" if settings.aa else f"--repeats {settings.repeats}"
    if engines[0][1].kind.is_virtual and (settings.aa or settings.repeats > 1):
        raise InvalidInput(
            f"{again}: is for live engines (--engine vllm or a URL); in virtual time a second "
            "measurement has exactly the same numbers"
        )
    if not settings.aa:
        return list(engines)
    return [
        ((*chosen, *(second_arm(v) for v in chosen if v.name == baseline)), engine, left_out)
        for chosen, engine, left_out in engines
    ]


def _shortest(longest: Sequence[Longest]) -> Longest:
    known = [limit for limit in longest if limit.tokens is not None]
    return min(known, key=itemgetter(0), default=longest[0])


def _load(
    settings: SweepSettings, longest: Longest, kind: EngineKind, steady: bool
) -> tuple[AgentPlan | None, Workload]:
    if settings.agents != Agents():
        from harness.load.agent_plan import plan_agents

        if kind.is_virtual:
            raise InvalidInput(
                f"{settings.agents.flag}: agents need a live server; use --engine vllm or a "
                "server's URL, or replay recorded ones with --agents NUMBER"
            )
        return plan_agents(settings, longest)
    messages = settings.server.prompts is Prompts.TEXT
    return None, load_workload(settings.load, longest, messages=messages, stream=steady).packed()


def _background(settings: SweepSettings, longest: Longest, workload: Workload) -> Background | None:
    messages = settings.server.prompts is Prompts.TEXT
    background = load_background(settings.load, longest, messages=messages)
    if background is not None:
        refuse_same_ids(workload)
    return background


def refuse_same_folder(names: Sequence[str]) -> None:
    """Raises InvalidInput for names whose arguments differ only in characters that `slug` drops."""
    by_folder: dict[str, str] = {}
    for name in names:
        if (other := by_folder.setdefault(slug(name), name)) != name:
            raise InvalidInput(
                f"--policies: {other} and {name} would have the same folder, {slug(name)}; run "
                "them in two sweeps"
            )


def _default_seeds(scenario: ScenarioRecord | None, steady: bool) -> str:
    if scenario is not None:
        return str(scenario.published_seed)
    return DEFAULT_SEEDS if steady else DEFAULT_SEEDS_ONCE


def _slo_and_loads(
    settings: SweepSettings, kind: EngineKind, fixed: str
) -> tuple[Slo | None, tuple[float | None, ...], HorizonRecord | None]:
    """Return the SLO, the loads, and for how long jobs arrive. `fixed`: see `fixed_by`."""
    load, arrivals = settings.load, parse_arrivals(settings.load.process)
    slo = _slo(settings, fixed)
    jps = AUTO if settings.jps is None and slo is not None else settings.jps
    amounts = _amounts(jps, arrivals, settings, searches=slo is not None)
    return slo, amounts, None if load.scenario else _horizon(load, kind, fixed, arrivals, amounts)


def _slo(settings: SweepSettings, fixed: str) -> Slo | None:
    """Return the SLO of the search for capacities; None if there is none. `fixed`: see
    `fixed_by`."""
    given = settings.slo is not None or settings.jps == AUTO
    option = f"--slo '{settings.slo}'" if settings.slo is not None else "--jps auto"
    has_agents = parse_arrivals(settings.load.process).takes_agents
    slo = parse_slo(settings.slo or (DEFAULT_SLO_OF_AGENTS if has_agents else DEFAULT_SLO))
    if given and settings.no_capacity:
        remedy = "remove --slo" if settings.slo is not None else "give a rate, such as --jps 0.1"
        raise InvalidInput(
            f"{option}: needs a search for capacities, which --no-capacity and --one leave out;"
            f" {remedy}"
        )
    if given and fixed:
        remedy = "remove --slo" if settings.slo is not None else "give rates, such as --jps 0.1,0.3"
        raise InvalidInput(
            f"{option}: needs jobs that go on arriving, and with {fixed} the jobs are a fixed set; "
            + ("remove --once, or " if fixed == "--once" else "")
            + remedy
        )
    searches = not (fixed or settings.no_capacity or settings.load.scenario)
    return slo if searches else None


def fixed_by(load: Load, kind: EngineKind) -> str:
    """Return the option that makes the jobs of a cell a fixed set; empty if none does."""
    if load.scenario is not None:
        return ""
    if not kind.is_virtual:
        return f"--engine {'URL' if kind.is_remote else kind.name}"
    arrivals = parse_arrivals(load.process)
    if not (arrivals.takes_rate or arrivals.takes_agents):
        return f"--arrivals {load.arrivals}"
    return "--once" if load.once else ""


def _horizon(
    load: Load,
    kind: EngineKind,
    fixed: str,
    arrivals: Arrivals,
    rates: tuple[float | None, ...],
) -> HorizonRecord | None:
    """Return for how long jobs arrive; None if their number or the agents' sets the load, and for a
    steady state."""
    if fixed or arrivals.takes_agents:
        given = load.horizon if load.horizon is not None else load.burst
        if given is None:
            if arrivals.hours and kind.is_virtual:
                raise InvalidInput(
                    f"--arrivals {load.process}: a rate is the mean of a day, and with {fixed} the "
                    "jobs are a fixed set; remove one of them"
                )
            return None
        option = "--burst" if load.horizon is None else "--horizon"
        other = fixed or f"--arrivals {load.process}"
        why = "the jobs are a fixed set" if fixed else "the number of agents sets the load"
        remedy = "remove one of them" if fixed else "use --arrivals poisson without --agents"
        raise InvalidInput(
            f"{option} {given}: is for jobs that arrive at a rate in virtual time, and with {other}"
            f" {why}; {remedy}"
        )
    text = load.horizon or (WHOLE_DAY if arrivals.hours else DEFAULT_HORIZON)
    horizon = parse_horizon(text, load.burst)
    if arrivals.hours:
        refuse_part_of_day(horizon, text, load.process)
    if horizon is not None:
        refuse_rare_jobs(horizon, rates)
    return horizon


def _refuse_equal_seeds(settings: SweepSettings, arrivals: Arrivals, workload: Workload) -> None:
    """Refuse seeds that would be copies of each other and look like agreement."""
    distinct = workload.programs[: workload.distinct_programs]
    if arrivals.kind == "recorded":
        why = "with --arrivals recorded"
    elif len(roots(workload.programs)) == 1:
        why = "with one job"
    elif arrivals.draws_order and are_alike(distinct):
        why = f"with --arrivals {settings.load.process} and jobs that are all alike"
    else:
        return
    raise InvalidInput(
        f"--seeds {settings.seeds}: {why} a seed draws nothing, so in virtual time all seeds would "
        "have the same results; use one seed, or --arrivals poisson"
        + (" without --once" if settings.load.once else "")
    )


def _amounts(
    jps: str | None, arrivals: Arrivals, settings: SweepSettings, *, searches: bool
) -> tuple[float | None, ...]:
    """Return the loads under which all variants run, as numbers."""
    agents, process = settings.load.agents, settings.load.process
    if agents is not None and not arrivals.takes_agents:
        raise InvalidInput(f"--agents {agents}: --arrivals {process} has no agents; remove one")
    if arrivals.takes_agents:
        return _agents(settings, searches=searches)
    if jps == AUTO and arrivals.takes_rate:
        return ()
    if arrivals.takes_rate:
        return tuple(parse_rates(DEFAULT_JPS if jps is None else jps))
    if jps is not None:
        raise InvalidInput(f"--jps {jps}: --arrivals {process} sets the load itself; remove --jps")
    return (None,)


def _agents(settings: SweepSettings, *, searches: bool) -> tuple[float, ...]:
    load = settings.load
    if settings.jps is not None:
        raise InvalidInput(
            f"--jps {settings.jps}: --arrivals {load.process} has no rate; use --arrivals "
            "poisson, or give numbers of agents with --agents instead of --jps"
        )
    if load.once:
        raise InvalidInput(
            "--once: agents go on until a steady state has been measured; use --arrivals closed:N "
            "for a fixed set of jobs, N in flight"
        )
    if load.agents is None and not searches:
        raise InvalidInput(
            f"--arrivals {load.process}: without a search, give numbers of agents with --agents, "
            "such as 8,16,32"
        )
    return () if load.agents is None else tuple(map(float, parse_agents(load.agents)))


def _baseline(given: str | None, chosen: Sequence[Variant]) -> str:
    names = [variant.name for variant in chosen]
    if given is None:
        own = [variant.name for variant in chosen if not variant.reference] or names
        return next((name for name in DEFAULT_BASELINES if name in own), own[0])
    if "(" in given and "@" not in given:
        given = variant(given).name
    if given not in names:
        hint = did_you_mean(given, names, "add it to --policies")
        raise InvalidInput(f"--baseline {given}: not among the policies of this sweep{hint}")
    if chosen[names.index(given)].reference == UNLIMITED_KV:
        raise InvalidInput(
            f"--baseline {given}: runs on another machine than the others, one with unlimited KV "
            "memory; use fcfs"
        )
    return given
