"""What a command prints of a run's report: the answer and the table to stdout, failed gates and
cells without a result to stderr."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import typer

PIPE_COLUMNS = 200
"""Wide enough for every column of the table; a pipe has no width of its own."""
MOST_NAMED = 5
"""Of the cells without a result; the report names all."""


def print_report(
    folder: Path,
    failed: Collection[str] = (),
    gantt: Sequence[str] = (),
    evaluations: Sequence[str] = (),
) -> None:
    """Write it first. Exit code 1 if a gate failed or a cell has no result; of those in `failed`
    the caller has said why."""
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
