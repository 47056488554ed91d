"""Print the report of a run: the answer and the table to stdout, failed gates and cells without a
result to stderr."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from reports.page.machines import MachinesReport
    from reports.page.write import Report

PIPE_COLUMNS = 200
"""Width of the table in a pipe, which fits every column."""
MAX_NAMED_CELLS = 5
"""Limit of printed cells without a result; the report lists all."""


def print_report(
    folder: Path,
    failed: Collection[str] = (),
    gantt: Sequence[str] = (),
    evaluations: Sequence[str] = (),
) -> None:
    """Write and print the report. Exit with code 1 if a gate failed or a cell has no result.

    The errors of the cells in `failed` are not printed, because the caller has printed them.
    """
    from rich.console import Console

    from reports import write_machines_report, write_report
    from reports.metrics.agents import keep_evaluation
    from reports.run_folder.machines import has_members, refuse_members

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    if has_members(folder):
        if gantt or evaluations:
            refuse_members(folder)
        machines = write_machines_report(folder)
        _print_answer(console, [machines.headline, *machines.caveats])
        for member, each in machines.machines:
            _print_answer(console, [f"{member.label}: {each.answer[0]}"])
        _print_end(console, machines, failed)
        return
    for evaluation in evaluations:
        keep_evaluation(folder, evaluation)
    report = write_report(folder, gantt)
    _print_answer(console, report.answer)
    if report.table.points:
        console.print("", report.table, sep="\n")
    _print_end(console, report, failed)


def _print_answer(console: Console, sentences: Sequence[str]) -> None:
    console.print("", *sentences, sep="\n", markup=False, soft_wrap=not console.is_terminal)


def _print_end(console: Console, report: Report | MachinesReport, failed: Collection[str]) -> None:
    from traces.lenient import printable

    console.print(f"\nreport: {report.path}", markup=False, soft_wrap=True)
    for gate in report.failed_gates:
        print(f"failed: {gate}", file=sys.stderr)
    missing = [(name, reason) for name, reason in report.missing if name not in failed]
    for name, reason in missing[:MAX_NAMED_CELLS]:
        print(f"no result: {name}: {printable(reason)}", file=sys.stderr)
    if (more := len(missing) - MAX_NAMED_CELLS) > 0:
        print(f"no result: {more} more, see the report", file=sys.stderr)
    if failed or report.failed_gates or report.missing:
        raise typer.Exit(1)
