"""`bench report`: write and print the report of a run folder again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.print_report import TableDetail, TableOption, print_report

app = typer.Typer(add_completion=False)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of bench sweep.")],
    gantt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CELL",
            help="Folder name of a cell whose programs are drawn individually; repeatable.",
        ),
    ] = None,
    evaluation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CELL=FILE",
            help="SWE-bench's report on a cell's predictions.jsonl, for its pass rate; repeatable.",
        ),
    ] = None,
    table: TableOption = TableDetail.BRIEF,
) -> None:
    """Write and print the report of a run folder again: bench report runs/NAME

    [bold]Examples[/bold]

      bench report runs/NAME --table full

      bench report runs/NAME --gantt continuum_jps0.3_seed1
    """
    with one_line_errors():
        print_report(
            run, gantt=gantt or (), evaluations=evaluation or (), full=table is TableDetail.FULL
        )
