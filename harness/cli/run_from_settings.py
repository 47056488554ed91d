"""Resolve the settings of a command and run the sweep.

In: `SweepSettings`. Out: a run folder; a summary of the plan on stdout, warnings on stderr. Invalid
settings print one line and exit with code 2. An interruption prints the command that resumes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.errors import one_line_errors
from harness.console import print_message
from harness.installation import PACKAGES, check_package
from servers.basics.cores import cpu_cores
from servers.basics.errors import InvalidInput
from servers.basics.phrasing import counted, time_span
from servers.basics.redact import REDACTED, redact_command_line

if TYPE_CHECKING:
    from harness.cells.locks import Shard
    from harness.cluster.tasks import RayPool
    from harness.load.settings import Execution, Load, SweepSettings
    from harness.sweep.plan import SweepPlan
    from harness.sweep.run import SweepOutcome
    from reports.answer.condition import Condition
    from servers.variants import Variant


def run_from_settings(
    settings: SweepSettings,
    execution: Execution,
    arguments: Sequence[str],
    *,
    one_cell: bool = False,
    condition: Condition | None = None,
    continues: bool = False,
) -> tuple[Path, Mapping[str, str]]:
    """Return the run folder and the errors of failed cells by name. The errors are printed.
    `arguments` are the command's. `condition` is checked before any cell runs. `continues`: the
    command has run cells of this folder itself, so that nothing is said about finished ones."""
    workers = execution.workers
    if workers is not None and workers < 1:
        raise InvalidInput(f"--workers {workers}: must be at least 1")
    from harness.cells.locks import parse_shard
    from harness.load.machines import is_list
    from harness.sweep.folder import default_folder
    from harness.sweep.members import resolve_members
    from harness.sweep.plan import ONE
    from harness.sweep.resolve import resolve

    shard = None if execution.shard is None else parse_shard(execution.shard)
    for check in map(check_package, PACKAGES):
        if not check.passed:
            raise InvalidInput(f"{check.name} is {check.finding}; {check.remedy}")
    if is_list(settings) and not one_cell:
        machines = resolve_members(settings)
        by_name = machines.plans
        folder = execution.out or machines.default_folder()
        claim = machines.claimed(folder, arguments, shard)
    else:
        by_name = {ONE: (plan := resolve(settings))}
        folder, claim = execution.out or default_folder(plan), None
    plans = list(by_name.values())
    if condition is not None:
        check_condition(condition, plans[0])
        _refuse_other_unit(condition, settings.load, plans[0])
    if shard is not None:
        from harness.sweep.shards import refuse_shard

        refuse_shard(plans[0], shard)
    if one_cell and len(plan.cells()) != 1:
        dimensions = (
            ("one policy with --policies", plan.variants),
            (
                "one number with --agents" if plan.has_agents else "one rate with --jps",
                plan.amounts,
            ),
            ("one seed with --seeds", plan.seeds),
        )
        missing = " and ".join(text for text, values in dimensions if len(values) > 1)
        raise InvalidInput(
            f"these settings have {len(plan.cells())} cells: give {missing}, or remove --one"
        )
    from harness.sweep.run import run_sweeps

    with one_line_errors(resume_hint(arguments)), _pool(execution, plans[0], folder) as pool:
        outcome = run_sweeps(
            by_name,
            folder,
            execution,
            arguments=arguments,
            on_begin=partial(_print_plan, plans),
            claim=claim,
            pool=pool,
        )
    if outcome.found_done and not continues:
        print_message(f"{outcome.found_done} of {outcome.cells} cells were finished already")
    if outcome.failed:
        first = folder / next(iter(outcome.failed)) / "failed.json"
        print_message(
            f"{len(outcome.failed)} of {outcome.cells} cells failed; see {first}; "
            f"run them again with: {same_command(arguments)}"
        )
    if shard is not None:
        _print_shard(shard, outcome, sum(len(plan.cells()) for plan in plans))
    return folder, outcome.failed


@contextmanager
def _pool(execution: Execution, plan: SweepPlan, folder: Path) -> Iterator[RayPool | None]:
    cluster, workers = execution.cluster, execution.workers
    if cluster is None:
        yield None
        return
    from harness.cluster.connection import connected
    from harness.cluster.tasks import RayPool, needs_of

    needs = needs_of(plan, cluster)
    with connected(cluster, workers or cpu_cores(), needs):
        yield RayPool(folder, needs, plan.engine.kind.has_compiled_core, workers)


def _print_shard(shard: Shard, outcome: SweepOutcome, cells: int) -> None:
    own = f"{outcome.cells} of {cells} cells"
    if not outcome.cells:
        own = f"no cells, since the sweep has only {cells}"
    whole = f"{outcome.missing} of the sweep have no result yet"
    if not outcome.missing:
        whole = f"the sweep is finished, write its report with: bench report {outcome.folder}"
    print(f"shard {shard}: {own}; {whole}")


def check_condition(condition: Condition, plan: SweepPlan) -> None:
    """Raise InvalidInput for a condition about something that the sweep does not measure."""
    from reports.loads import ladder_of

    names = [variant.name for variant in plan.variants]
    condition.check(names, plan.amounts, ladder_of(plan.arrivals_text))
    if condition.needs_capacity and plan.slo is None:
        raise InvalidInput(
            f"--fail-unless '{condition.text}': these settings search no capacity; use mean_jct, "
            "or remove what fixes the load, such as --no-capacity, --once or --scenario"
        )


def _refuse_other_unit(condition: Condition, load: Load, plan: SweepPlan) -> None:
    """Raise InvalidInput for a number that may be jobs per second, without the user's agents."""
    was_chosen = load.arrivals is not None or load.agents is not None
    if plan.has_agents and not was_chosen and condition.depends_on_unit:
        raise InvalidInput(
            f"--fail-unless '{condition.text}': compares a capacity with a number, which may be "
            "agents or jobs/s; add --arrivals agents or --arrivals poisson"
        )


def resume_hint(arguments: Sequence[str]) -> str:
    return f"; finished cells are kept, resume with: {same_command(arguments)}"


def same_command(arguments: Sequence[str]) -> str:
    redacted = redact_command_line(arguments)
    note = "" if redacted == [*arguments] else f"  (replace {REDACTED} by your secret)"
    return shlex.join(["bench", *redacted]) + note


def _print_plan(plans: Sequence[SweepPlan]) -> None:
    from traces.assumptions import unused_recipe

    plan, machines = plans[0], ""
    load = plan.workload
    for line in dict.fromkeys(each.engine.describe() for each in plans):
        print(line)
    if len(plans) > 1:
        has_bursts = plan.horizon != plans[1].horizon
        machines = f" x {counted(len(plans), 'burst' if has_bursts else 'machine')}"
    if plan.agents is not None:
        print(plan.agents.describe())
    policies = _policies(plan.variants)
    turns = f", {counted(load.turns, 'turn')}" if load.turns else ""
    loads = f" x {counted(len(plan.amounts), 'load')}" if plan.amounts else ""
    print(
        f"{load.name}: {counted(len(load.programs), 'program')}{turns}; {policies}{loads} x "
        f"{counted(len(plan.seeds), 'seed')}{machines}",
        _jobs(plan),
        sep="\n",
        flush=True,
    )
    if plan.background is not None:
        print(plan.background.describe(), flush=True)
    _print_notes("left out", [f"{v.name}: {v.reason}" for v in plan.left_out])
    _print_notes("left out", [left.reason for left in load.left_out])
    if plan.background is not None:
        _print_notes("left out", [left.reason for left in plan.background.left_out])
    _print_notes("rejected", [f"{n.file}: {n.reason}" for n in plan.notes("rejected_files")])
    _print_notes("repaired", [f"{n.file}: {n.reason}" for n in plan.notes("repairs")], limit=0)
    recipe = plan.settings.load.reading.synthesise_gaps
    for message in unused_recipe(recipe, [note.reason for note in load.repairs]):
        print_message(message)


def _policies(variants: Sequence[Variant]) -> str:
    routers = {v.router.name for v in variants if v.router}
    behind = [v.name for v in variants if v.router and not v.same_as]
    splits = {v.split for v in variants}
    count = len(behind) // len(routers) // len(splits) if routers else len(variants)
    policies = "1 policy" if count == 1 else f"{count} policies"
    if not routers:
        return policies
    more = f" x {counted(len(splits), 'split')} of the engines" if len(splits) > 1 else ""
    return f"{policies} x {counted(len(routers), 'router')}{more}"


def _jobs(plan: SweepPlan) -> str:
    from harness.sweep.resolve import fixed_by

    if (scenario := plan.scenario) is not None:
        return f"scenario {scenario.name}: a window of {time_span(scenario.window_s)} after warm-up"
    if plan.steady:
        search = "" if plan.slo is None else f"; searching capacities for the SLO {plan.slo}"
        if plan.slo is not None and plan.has_agents:
            search = f"; searching how many agents each policy serves within the SLO {plan.slo}"
            if plan.settings.load.agents is None:
                search += " (--arrivals poisson searches jobs/s)"
        if (horizon := plan.horizon) is not None:
            return f"all jobs that arrive in {horizon.in_words}{search}"
        how = "agents start jobs" if plan.has_agents else "jobs arrive"
        return f"steady state: {how} until all measured jobs have finished{search}"
    fixed = fixed_by(plan.settings.load, plan.engine.kind)
    return f"fixed set ({fixed}): each job runs once, until all have finished"


def _print_notes(kind: str, notes: list[str], limit: int = 5) -> None:
    for note in notes[:limit]:
        print_message(f"{kind}: {note}")
    if (more := len(notes) - limit) > 0:
        print_message(f"{kind}: {more}{' more' if limit else ''}, listed in sweep.json")
