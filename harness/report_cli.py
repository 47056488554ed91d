"""What a command prints of a run's report: the answer and the table to stdout, failed gates to
stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

PIPE_COLUMNS = 200
"""Wide enough for every column of the table; a pipe has no width of its own."""


def print_report(
    folder: Path,
    failed: bool = False,
    gantt: Sequence[str] = (),
    evaluations: Sequence[str] = (),
) -> None:
    """Write it first. Exit code 1 if a gate or a cell failed."""
    from rich.console import Console

    from reports import write_report
    from reports.agents import keep_evaluation

    for evaluation in evaluations:
        keep_evaluation(folder, evaluation)
    report = write_report(folder, gantt)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    console.print("", *report.answer, "", sep="\n", markup=False)
    console.print(report.table)
    console.print(f"\nreport: {report.path}", markup=False, soft_wrap=True)
    for gate in report.failed_gates:
        print(f"failed: {gate}", file=sys.stderr)
    if failed or report.failed_gates:
        raise typer.Exit(1)
