"""`bench sweep`: run the cells of a sweep, and print the answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.options import CommandApp, refuse_given
from harness.cli.print_report import TableDetail, TableOption, print_report
from harness.cli.run_from_settings import resume_hint, run_from_settings
from harness.console import print_message
from harness.load.option import Option
from harness.load.settings import RUN, Execution, Keep, SweepSettings
from servers.basics.errors import InvalidInput

if TYPE_CHECKING:
    from reports.answer.condition import Condition

app = CommandApp()
OF_SEVERAL_CELLS = (
    *("baseline", "slo", "api_price", "aa", "repeats", "fail_unless", "until", "table"),
    *("workers", "on_error", "shard", "cluster", "show", "keep"),
)
"""Options that `--one` does not support."""
WITH_SHOW = ("fail_unless", "until", "table", "workers", "on_error", "shard", "cluster", "keep")
"""Options that `--show` does not support."""
SWEEP_HELP = """Run policies over job rates, and report which policy finishes jobs first.

Run the same command again to resume: finished cells are never run twice. With one more policy,
rate or seed, only the new cells run.

[bold]Examples[/bold]

Find the rate that each policy sustains, for the built-in trace on a simulated GPU:

  bench sweep

Find how many agents with your recorded sessions each policy serves on another GPU, or jobs/s:

  bench sweep --traces my-trajectories/ --hardware h100

  bench sweep --traces my-trajectories/ --hardware h100 --arrivals poisson

Compare job completion times at given rates:

  bench sweep --jps 0.1,0.3 --policies fcfs,continuum --seeds 1..5

Look at one cell: its settings, its result, and where the time went:

  bench sweep --one --policies continuum --jps 0.3

  bench sweep RUN/sweep.toml --out RUN --show turnstile_jps0.02_seed2

Find how many agents each policy serves at a promised speed, and the GPUs that 40 need:

  bench sweep --agents 40 --slo 'ttft_p95<=5s,speed_p90>=20' --traces my-trajectories/

Keep 32 jobs in flight, with 200 GB of DRAM for the KV of policies that offload:

  bench sweep --arrivals closed:32 --policies all --offload-gb 200

Set the SLO that defines capacity, or fail unless one policy is better:

  bench sweep --slo 'mean<=3x,p95<=300s' --seeds 1..5

  bench sweep --fail-unless 'capacity(continuum) >= 1.3 * capacity(fcfs)'

Measure a live vLLM that bench starts for each policy, or a server that runs already:

  bench sweep --engine vllm --model tiny --kv-blocks 200 --policies fcfs,continuum --seeds 1..5

  bench sweep --engine http://127.0.0.1:8000 --jps 0.5

Run real agents instead of replaying recorded programs:

  bench sweep --agent mini-swe-agent --guided --traces my-trajectories/ --engine vllm --jps 0.2

Distribute the cells over machines:

  bench sweep --no-capacity --seeds 1..20 --out /shared/run --shard 3/16

  bench sweep --cluster head-node:6379
"""


@app.command(help=SWEEP_HELP, file=True)
def sweep(
    *,
    context: typer.Context,
    settings: SweepSettings,
    execution: Execution,
    one: Annotated[
        bool,
        Option(
            "Run one cell (one policy, rate and seed; default: seed 1), and print its "
            "settings, its result, and where the time went.",
            panel=RUN,
        ),
    ] = False,
    show: Annotated[
        str | None,
        Option(
            "Print the settings and the result of a cell of this sweep, and where its time "
            "went. It runs again if its turns were not kept, and then keeps them.",
            "CELL",
            panel=RUN,
        ),
    ] = None,
    fail_unless: Annotated[
        str | None,
        Option(
            "Exit with code 1 unless this holds, in quotes: 'capacity(continuum) >= 1.3 * "
            "capacity(fcfs)' or 'mean_jct(continuum, at=0.3) <= 60'.",
            "CONDITION",
            panel=RUN,
        ),
    ] = None,
    table: TableOption = TableDetail.BRIEF,
) -> None:
    from harness.cli.until import with_default

    if one:
        refuse_given(context, OF_SEVERAL_CELLS, "not supported with --one")
        _run_one(settings, execution)
        return
    settings = with_default(settings, execution)
    if show is not None:
        refuse_given(context, WITH_SHOW, "not supported with --show")
        _show(show, settings, execution)
        return
    if fail_unless is not None:
        _condition(fail_unless)
    _check_shard(execution, fail_unless, settings.until)
    from harness.cli.tuned import with_tuned

    run = partial(run_from_settings, arguments=sys.argv[1:])
    settings, stated = with_tuned(settings, execution, run, fail_unless)
    condition = None if stated is None else _condition(stated)
    if settings.until is None:
        folder, failed = run_from_settings(settings, execution, sys.argv[1:], condition=condition)
    else:
        folder, failed = _until(settings.until, settings, execution, condition)
    if execution.shard is not None:
        raise typer.Exit(1 if failed else 0)
    with one_line_errors(resume_hint(sys.argv[1:])):
        print_report(folder, failed, condition=condition, full=table is TableDetail.FULL)


def _run_one(settings: SweepSettings, execution: Execution) -> None:
    from harness.cli.tables import show_cell
    from reports.run_folder.read import load_run

    # A settings file of a whole sweep may have a baseline and an SLO.
    settings = replace(
        settings,
        seeds=settings.seeds or "1",
        until=None,
        baseline=None,
        slo=None,
        api_price=None,
        no_capacity=True,
    )
    folder, failed = run_from_settings(
        settings, replace(execution, workers=1, keep=Keep.TURNS), sys.argv[1:], one_cell=True
    )
    if failed:
        raise typer.Exit(1)
    with one_line_errors(resume_hint(sys.argv[1:])):
        gates = show_cell(load_run(folder).cells[0].folder)
    _exit_unless_valid(gates)


def _show(name: str, settings: SweepSettings, execution: Execution) -> None:
    """Print a cell of a finished sweep, which runs again if its turns were not kept."""
    from harness.cli.tables import show_cell
    from harness.load.machines import is_list
    from harness.sweep.again import run_again
    from harness.sweep.folder import default_folder
    from harness.sweep.resolve import resolve

    if is_list(settings):
        raise InvalidInput(
            f"--show {name}: give one machine, one burst, and --out with its run folder"
        )
    plan = resolve(settings)
    gates = show_cell(run_again(plan, execution.out or default_folder(plan), name))
    _exit_unless_valid(gates)


def _exit_unless_valid(gates: str) -> None:
    if gates:
        print_message(f"failed: {gates}")
        raise typer.Exit(1)


def _check_shard(execution: Execution, fail_unless: str | None, until: str | None) -> None:
    if execution.shard is None:
        return
    from harness.cells.locks import parse_shard

    shard = parse_shard(execution.shard)
    if execution.cluster is not None:
        raise InvalidInput(
            f"--shard {shard}: --cluster {execution.cluster} distributes all cells itself; remove "
            "one of the two"
        )
    if execution.out is None:
        raise InvalidInput(f"--shard {shard}: add --out with a folder that all shards share")
    for option, value in (("--fail-unless", fail_unless), ("--until", until)):
        if value is not None:
            raise InvalidInput(
                f"--shard {shard}: {option} needs the cells of all shards; give it to the same "
                "command without --shard, at the end"
            )


def _until(
    text: str, settings: SweepSettings, execution: Execution, condition: Condition | None
) -> tuple[Path, Mapping[str, str]]:
    from harness.cli.until import parse_until, refuse_until, run_until
    from harness.sweep.folder import default_folder
    from harness.sweep.resolve import resolve

    rule = parse_until(text)
    refuse_until(settings, text)
    folder = execution.out or default_folder(resolve(settings))
    run = partial(
        run_from_settings,
        execution=replace(execution, out=folder),
        arguments=sys.argv[1:],
        condition=condition,
    )
    return run_until(settings, rule, folder, run)


def _condition(text: str) -> Condition:
    from reports.answer.condition import parse_condition

    return parse_condition(text)
