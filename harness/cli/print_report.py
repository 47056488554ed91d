"""Prints the report of a run: the answer and the table on stdout, failed gates and cells without a
result on stderr."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import typer

PIPE_COLUMNS = 200
"""Width of the table in a pipe, enough for every column."""
MOST_NAMED = 5
"""The number of cells without a result that are printed; the report names all."""


def print_report(
    folder: Path,
    failed: Collection[str] = (),
    gantt: Sequence[str] = (),
    evaluations: Sequence[str] = (),
) -> None:
    """Writes and prints the report. Exit code 1 if a gate failed or a cell has no result. The
    caller has printed the errors of the cells in `failed`."""
    from rich.console import Console

    from reports import write_report
    from reports.metrics.agents import keep_evaluation
    from traces.lenient import printable

    for evaluation in evaluations:
        keep_evaluation(folder, evaluation)
    report = write_report(folder, gantt)
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal else PIPE_COLUMNS)
    console.print("", *report.answer, sep="\n", markup=False, soft_wrap=not terminal)
    if report.table.points:
        console.print("", report.table, sep="\n")
    console.print(f"\nreport: {report.path}", markup=False, soft_wrap=True)
    for gate in report.failed_gates:
        print(f"failed: {gate}", file=sys.stderr)
    unnamed = [(name, why) for name, why in report.missing if name not in failed]
    for name, why in unnamed[:MOST_NAMED]:
        print(f"no result: {name}: {printable(why)}", file=sys.stderr)
    if len(unnamed) > MOST_NAMED:
        print(f"no result: {len(unnamed) - MOST_NAMED} more, see the report", file=sys.stderr)
    if failed or report.failed_gates or report.missing:
        raise typer.Exit(1)
