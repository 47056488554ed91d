"""From the options of a command to a finished run folder, and what a person is told on the way.

What is wrong with a question becomes one line on stderr and exit code 2 here, an interruption a
line that says how to go on.
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
from harness.redact import HIDDEN, hidden_words
from servers.errors import InvalidInput

if TYPE_CHECKING:
    from harness.load.settings import Asked
    from harness.sweep.plan import Question


def answer(
    asked: Asked,
    out: Path | None,
    workers: int | None,
    *,
    stop_on_error: bool = False,
    one_cell: bool = False,
) -> tuple[Path, Mapping[str, str]]:
    """Runs what is asked; the folder, and why cells failed, which was said."""
    with one_line_errors():
        if workers is not None and workers < 1:
            raise InvalidInput(f"--workers {workers}: at least 1")
        from harness.sweep.plan import resolve
        from harness.sweep.run import default_folder, run_sweep

        for check in map(package, PACKAGES):
            if not check.good:
                raise InvalidInput(f"{check.name} is {check.finding}; {check.remedy}")
        question = resolve(asked)
        if one_cell and len(question.cells()) != 1:
            several = (
                ("one --policy", question.variants),
                ("one rate with --jps", question.rates),
            )
            missing = " and ".join(one for one, named in several if len(named) > 1)
            raise InvalidInput(
                f"that is {len(question.cells())} cells: name {missing}, or use bench sweep"
            )
        folder = out or default_folder(question)
    with one_line_errors(go_on()):
        outcome = run_sweep(
            question,
            folder,
            workers=workers or cpu_cores(),
            stop_on_error=stop_on_error,
            on_begin=lambda: _say_what_runs(question),
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


def go_on() -> str:
    return f"; finished cells are kept, go on with: {same_command()}"


def same_command() -> str:
    words = sys.argv[1:]
    told = hidden_words(words)
    note = "" if told == words else f"  (with your own for {HIDDEN}, which is not told here)"
    return shlex.join(["bench", *told]) + note


def _say_what_runs(question: Question) -> None:
    load = question.workload
    print(question.engine.told())
    if question.agents is not None:
        print(question.agents.told())
    shape = [
        _count(len(question.variants), "policy", "policies"),
        _count(len(question.rates), "load"),
        _count(len(question.seeds), "seed"),
    ]
    turns = f", {_count(load.turns, 'turn')}" if load.turns else ""
    print(
        f"{load.name}: {_count(len(load.programs), 'program')}{turns}; " + " x ".join(shape),
        flush=True,
    )
    _some("left out", [f"{name}: {reason}" for name, reason in question.left_out])
    _some("left out", [left.reason for left in load.left_out])
    _some("rejected", [f"{note.file}: {note.reason}" for note in load.rejected_files])
    _some("repaired", [f"{note.file}: {note.reason}" for note in load.repairs], most=0)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _some(what: str, reasons: list[str], most: int = 5) -> None:
    for reason in reasons[:most]:
        complain(f"{what}: {reason}")
    if more := len(reasons) - most if len(reasons) > most else 0:
        complain(f"{what}: {more}{' more' if most else ''}, named in sweep.json")
