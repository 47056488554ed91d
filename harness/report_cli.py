"""`bench report RUN`: a run folder's report written again, and its answer printed.

The answer and the table go to stdout, failed gates to stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

PIPE_COLUMNS = 200
"""Wide enough for every column of the table; a pipe has no width of its own."""


def report_command(
    run: Annotated[Path, typer.Argument(help="A run folder, as bench sweep leaves it.")],
) -> None:
    """Write a run's report again, and print its answer."""
    print_report(run)


def print_report(folder: Path, failed: bool = False) -> None:
    """Exit code 1 if a gate or a cell failed."""
    from rich.console import Console

    from reports import write_report

    report = write_report(folder)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    console.print("", *report.answer, "", sep="\n", markup=False)
    console.print(report.table)
    console.print(f"\nreport: {report.path}", markup=False, soft_wrap=True)
    for gate in report.failed_gates:
        print(f"failed: {gate}", file=sys.stderr)
    if failed or report.failed_gates:
        raise typer.Exit(1)
