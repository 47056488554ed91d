"""Resolves the settings of a command, runs the sweep, and prints what happens.

In: `SweepSettings`. Out: a run folder; a summary of the plan on stdout, warnings on stderr. Invalid
settings are one line on stderr and exit code 2. After an interruption a line says how to resume.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.errors import one_line_errors
from harness.console import complain
from harness.installation import PACKAGES, cpu_cores, package
from harness.redact import REDACTED, redact_command_line
from servers.errors import InvalidInput

if TYPE_CHECKING:
    from harness.load.settings import SweepSettings
    from harness.sweep.plan import SweepPlan


def run_from_settings(
    settings: SweepSettings,
    out: Path | None,
    workers: int | None,
    *,
    stop_on_error: bool = False,
    one_cell: bool = False,
    reuse: bool = True,
) -> tuple[Path, Mapping[str, str]]:
    """Returns the run folder and the error of each failed cell, which has been printed."""
    with one_line_errors():
        if workers is not None and workers < 1:
            raise InvalidInput(f"--workers {workers}: at least 1")
        from harness.sweep.folder import default_folder
        from harness.sweep.plan import resolve
        from harness.sweep.run import run_sweep

        for check in map(package, PACKAGES):
            if not check.good:
                raise InvalidInput(f"{check.name} is {check.finding}; {check.remedy}")
        plan = resolve(settings)
        if one_cell and len(plan.cells()) != 1:
            several = (
                ("one --policy", plan.variants),
                ("one rate with --jps", plan.rates),
                ("one --seed", plan.seeds),
            )
            missing = " and ".join(one for one, values in several if len(values) > 1)
            raise InvalidInput(
                f"these settings have {len(plan.cells())} cells: give {missing}, or use bench sweep"
            )
        folder = out or default_folder(plan)
    with one_line_errors(resume_hint()):
        outcome = run_sweep(
            plan,
            folder,
            workers=workers or cpu_cores(),
            stop_on_error=stop_on_error,
            reuse=reuse,
            on_begin=lambda: _print_plan(plan),
        )
    if outcome.found_done:
        complain(f"{outcome.found_done} of {outcome.cells} cells were finished already")
    if outcome.failed:
        first = folder / next(iter(outcome.failed)) / "failed.json"
        complain(
            f"{len(outcome.failed)} of {outcome.cells} cells failed, see {first}; "
            f"run them again with: {same_command()}"
        )
    return folder, outcome.failed


def resume_hint() -> str:
    return f"; finished cells are kept, resume with: {same_command()}"


def same_command() -> str:
    words = sys.argv[1:]
    redacted = redact_command_line(words)
    note = "" if redacted == words else f"  (replace {REDACTED} by your secret)"
    return shlex.join(["bench", *redacted]) + note


def _print_plan(plan: SweepPlan) -> None:
    load = plan.workload
    print(plan.engine.describe())
    if plan.agents is not None:
        print(plan.agents.describe())
    shape = [
        _count(len(plan.variants), "policy", "policies"),
        _count(len(plan.rates), "load"),
        _count(len(plan.seeds), "seed"),
    ]
    turns = f", {_count(load.turns, 'turn')}" if load.turns else ""
    print(
        f"{load.name}: {_count(len(load.programs), 'program')}{turns}; " + " x ".join(shape),
        flush=True,
    )
    _complain_of("left out", [f"{name}: {reason}" for name, reason in plan.left_out])
    _complain_of("left out", [left.reason for left in load.left_out])
    _complain_of("rejected", [f"{note.file}: {note.reason}" for note in load.rejected_files])
    _complain_of("repaired", [f"{note.file}: {note.reason}" for note in load.repairs], most=0)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _complain_of(what: str, reasons: list[str], most: int = 5) -> None:
    for reason in reasons[:most]:
        complain(f"{what}: {reason}")
    if more := len(reasons) - most if len(reasons) > most else 0:
        complain(f"{what}: {more}{' more' if most else ''}, named in sweep.json")
