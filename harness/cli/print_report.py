"""Print the report of a run: the answer and the table to stdout, failed gates and cells without a
result to stderr."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import typer

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
    missing = [(name, reason) for name, reason in report.missing if name not in failed]
    for name, reason in missing[:MAX_NAMED_CELLS]:
        print(f"no result: {name}: {printable(reason)}", file=sys.stderr)
    if (more := len(missing) - MAX_NAMED_CELLS) > 0:
        print(f"no result: {more} more, see the report", file=sys.stderr)
    if failed or report.failed_gates or report.missing:
        raise typer.Exit(1)
