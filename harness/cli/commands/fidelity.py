"""`bench fidelity`: compare virtual time with a live vLLM on the same cells.

The table and the verdict go to stdout, progress and warnings to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.options import AllBut, CommandApp, Only, refuse_given
from harness.cli.run_from_settings import resume_hint, run_from_settings
from harness.console import print_message
from harness.load.option import Option
from harness.load.settings import MACHINE, RUN, Execution, Machine, Server, SweepSettings
from servers.basics.errors import InvalidInput

if TYPE_CHECKING:
    from reports.fidelity.write import Card
    from servers.profiles.measured import Measured

app = CommandApp()
POLICIES = "fcfs,program-fcfs,continuum,autellix,infercept"
OF_NEW_RUNS = AllBut("live", "sim", "out", "hardware")
"""The options that are not supported with existing runs."""

HELP = """Compare virtual time with a live vLLM: run the same cells on both.

Measures the engine (or uses a profile of it), runs the cells in virtual time and live, and writes
fidelity.html and fidelity.json. Run the same command again to resume. The machine should be idle.
Arguments after -- are passed to vLLM; those that an option of bench sets are refused. Exit code 0:
all targets met; 1: a target missed.

[bold]Examples[/bold]

  bench fidelity --traces small.jsonl --jps 0.2,0.5,2 --seeds 1..3 --kv-blocks 400 --repeats 2

  bench fidelity --hardware here.json --jps 0.1,0.3,0.9 --policies fcfs,continuum

  bench fidelity --live runs/live-1 --live runs/live-2 --sim runs/sim
"""
RUNS = "Existing runs"


@app.command(help=HELP)
def fidelity(
    *,
    context: typer.Context,
    settings: Annotated[
        SweepSettings,
        Only("jps", "policies", "traces", "programs", "arrivals", "seeds", policies=POLICIES),
    ],
    hardware: Annotated[
        str | None,
        Option(
            "A measured profile of this engine (bench profile). Default: measured first.",
            "FILE",
            panel=MACHINE,
        ),
    ] = None,
    machine: Annotated[
        Machine,
        Only(
            "model",
            "gpus",
            "kv_blocks",
            "max_model_len",
            "max_num_seqs",
            "step_tokens",
            "admission",
        ),
    ],
    server: Annotated[
        Server, Only("vllm_flags", "vllm_python", "weights", "ready_within_s", "turn_timeout_s")
    ],
    within_s: Annotated[
        float, Option("Time limit for measuring.", "SECONDS", panel=RUN, min=10, max=540)
    ] = 120.0,
    repeats: Annotated[
        int,
        Option(
            "Runs of each live cell, to measure run-to-run variation of the live engine.",
            "N",
            panel=RUN,
            min=1,
        ),
    ] = 1,
    out: Annotated[
        Path | None,
        Option(
            "Default: runs/fidelity_… named after the settings; with --live, its folder.",
            "FOLDER",
            panel=RUN,
        ),
    ] = None,
    execution: Annotated[Execution, Only("workers")],
    live: Annotated[
        list[Path] | None,
        Option(
            "A live run to compare; give repeats by repeating the option. No cell is run.",
            "RUN",
            panel=RUNS,
        ),
    ] = None,
    sim: Annotated[
        Path | None, Option("The run of the same cells in virtual time.", "RUN", panel=RUNS)
    ] = None,
) -> None:
    if live or sim is not None:
        _compare_existing(context, live or [], sim, out, hardware)
        return
    machine = replace(machine, engine="vllm", hardware=hardware)
    settings = replace(settings, machine=machine, server=server)
    _run(settings, out, repeats, execution.workers, within_s)


def _compare_existing(
    context: typer.Context,
    live: list[Path],
    sim: Path | None,
    out: Path | None,
    hardware: str | None,
) -> None:
    from servers.profiles.files import read_measured

    refuse_given(context, OF_NEW_RUNS, "not supported with --live and --sim")
    if not live or sim is None:
        lacking = "--sim RUN, a run in virtual time" if live else "--live RUN, a live run"
        raise InvalidInput(f"to compare existing runs, give {lacking} of the same cells")
    measured = read_measured(Path(hardware)) if hardware is not None else None
    _write_card(live, sim, out or live[0], measured, failed=False)


def _run(
    settings: SweepSettings, out: Path | None, repeats: int, workers: int | None, within_s: float
) -> None:
    from harness.calibrate import fidelity as runs
    from harness.sweep.resolve import resolve
    from servers.profiles.files import read_measured

    runs.check(settings)
    folder = out or runs.default_folder(settings)
    profile = runs.prepare_folder(folder, settings.machine.hardware)
    if not profile.exists():
        _measure(settings, profile, within_s)
    on_vllm, in_sim = runs.live_and_virtual(settings, profile)
    measured = read_measured(profile)
    arrivals_s = repeats * runs.arrivals_s(resolve(on_vllm))
    _, failed = run_from_settings(in_sim, Execution(folder / "sim", workers), sys.argv[1:])
    if failed:
        raise typer.Exit(1)  # without them, live cells cannot be compared
    print(
        f"live: jobs arrive for {arrivals_s / 60:.0f} minutes in total, plus the start of servers",
        file=sys.stderr,
    )
    live = [folder / f"live-{number}" for number in range(1, repeats + 1)]
    for number, live_folder in enumerate(live, 1):
        print(f"live, {number} of {repeats}", file=sys.stderr, flush=True)
        _, live_failed = run_from_settings(
            on_vllm, Execution(live_folder, workers, fresh=True), sys.argv[1:]
        )
        failed = failed or live_failed
    with one_line_errors(resume_hint(sys.argv[1:])):
        _write_card(live, folder / "sim", folder, measured, bool(failed))


def _measure(settings: SweepSettings, profile: Path, within_s: float) -> None:
    """Measure as `bench profile` does, but without --kv-blocks, to reach longer contexts. More KV
    memory does not slow a step."""
    from harness.cli.measure_profile import measure_profile

    print("measuring the engine", file=sys.stderr, flush=True)
    machine = replace(settings.machine, kv_blocks=None)
    measure_profile(machine, settings.server, out=profile, within_s=within_s)


def _write_card(
    live: Sequence[Path], sim: Path, out: Path, measured: Measured | None, failed: bool
) -> None:
    from reports.fidelity.write import write_fidelity

    notes = [f"Profile: {note}" for note in measured.notes()] if measured is not None else []
    card = write_fidelity(live, sim, out, notes=notes)
    _show(card)
    if failed or not card.verdict.good:
        raise typer.Exit(1)


def _show(card: Card) -> None:
    from harness.cli.tables import show_rows
    from reports.fidelity.card import ranking_rows, table_rows

    show_rows(table_rows(card.fidelity), "virtual time and live, mean over seeds")
    if rows := ranking_rows(card.fidelity):
        show_rows(rows, "ranking by mean JCT")
    marks = {True: "met", False: "missed", None: "–"}
    show_rows([(marks[c.held], c.target, c.found) for c in card.verdict.checks], "targets")
    for run, cell, reason in card.invalid:
        print_message(f"{run}, {cell}: {reason}")
    print(f"\n{card.headline}")
    print(f"fidelity card: {card.path}")
