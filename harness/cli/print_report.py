"""Print the report of a run: the answer and the table to stdout, failed gates and cells without a
result to stderr."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.console import print_message
from harness.load.option import Option
from harness.load.settings import RUN, Machine
from servers.basics.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from reports.answer.condition import Condition
    from reports.answer.report import Report
    from reports.page.members import MembersReport

PIPE_COLUMNS, FULL_PIPE_COLUMNS = 80, 200
"""Width of tables in a pipe: of a usual terminal, and one that fits every column."""
MAX_NAMED_CELLS = 5
"""Limit of printed cells without a result; the report lists all."""


class TableDetail(StrEnum):
    BRIEF = "brief"
    FULL = "full"


TableOption = Annotated[
    TableDetail,
    Option(
        "Printed tables. brief: policies by rates, and the numbers at the rate of the "
        "answer if they differ, in 80 columns. full: the numbers at all rates.",
        panel=RUN,
    ),
]


def print_report(
    folder: Path,
    failed: Collection[str] = (),
    gantt: Sequence[str] = (),
    evaluations: Sequence[str] = (),
    condition: Condition | None = None,
    *,
    full: bool = False,
) -> None:
    """Write and print the report, with `full` the numbers at all rates. Exit with code 1 if a gate
    failed, a cell has no result, or the condition does not hold.

    The errors of the cells in `failed` are not printed, because the caller has printed them.
    """
    from rich.console import Console

    from reports import write_members_report, write_report
    from reports.metrics.agents import keep_evaluation
    from reports.run_folder.members import has_members, refuse_members
    from reports.statistics.best import separation_advice
    from reports.statistics.searched import simulated_minutes

    console = Console(highlight=False, width=_width(full))
    if has_members(folder):
        if gantt or evaluations:
            refuse_members(folder)
        members = write_members_report(folder)
        print_members(members)
        pairs = zip(members.runs, members.reports, strict=True)
        named = [(f"{run.label}: ", report) for run, (_, report) in pairs]
        for name, each in named:
            _print_answer(console, [f"{name}{each.answer[0]}"])
        _print_end(console, members, failed, _unmet(condition, named))
        return
    for evaluation in evaluations:
        keep_evaluation(folder, evaluation)
    report = write_report(folder, gantt)
    _print_answer(console, report.answer[:1])
    for table in report.tables(full):
        console.print("", table, sep="\n")
    minutes = simulated_minutes(report.run) if report.run.sweep.engine == Machine().engine else None
    advice = separation_advice(report.result.capacities, minutes)
    _print_answer(console, [*report.answer[1:], *advice])
    if report.kept:
        print_message("kept the earlier report, since none of the finished cells can be read")
    _print_end(console, report, failed, _unmet(condition, [("", report)]))


def print_members(found: MembersReport) -> None:
    """Print the comparison of several runs: capacities, the answer and the caveats."""
    from harness.cli.tables import show_rows

    if (table := found.capacities) is not None:
        rows = [(row.group, row.name, *(c.text for c in row.cells)) for row in table.rows]
        show_rows(rows, heads=("run", *table.heads))
    caveats = (f"caveat: {caveat}" for caveat in found.caveats)
    print("", found.headline, *found.findings, *caveats, sep="\n")


def _unmet(condition: Condition | None, reports: Sequence[tuple[str, Report]]) -> tuple[str, ...]:
    if condition is None:
        return ()
    from reports.answer.held import evaluate

    held = [
        (name, evaluate(condition, report.result, report.table.points)) for name, report in reports
    ]
    print(*(f"\n{name}{each.sentence}" for name, each in held), sep="")
    return tuple(f"{name}{each.sentence}" for name, each in held if not each.holds)


def _width(full: bool) -> int | None:
    if sys.stdout.isatty():
        return None
    return FULL_PIPE_COLUMNS if full else PIPE_COLUMNS


def _print_answer(console: Console, sentences: Sequence[str]) -> None:
    console.print("", *sentences, sep="\n", markup=False, soft_wrap=not console.is_terminal)


def _print_end(
    console: Console,
    report: Report | MembersReport,
    failed: Collection[str],
    unmet: Collection[str],
) -> None:
    console.print(f"\nreport: {report.path}", markup=False, soft_wrap=True)
    for gate in report.failed_gates:
        print(f"failed: {gate}", file=sys.stderr)
    missing = [(name, reason) for name, reason in report.missing if name not in failed]
    for name, reason in missing[:MAX_NAMED_CELLS]:
        print(f"no result: {name}: {printable(reason)}", file=sys.stderr)
    if (more := len(missing) - MAX_NAMED_CELLS) > 0:
        print(f"no result: {more} more, see the report", file=sys.stderr)
    for sentence in unmet:
        print(f"failed: {sentence}", file=sys.stderr)
    if failed or report.failed_gates or report.missing or unmet:
        raise typer.Exit(1)
