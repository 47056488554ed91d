"""`bench report`: write and print the report of a run folder again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from harness.cli.options import CommandApp
from harness.cli.print_report import TableDetail, TableOption, print_report
from harness.load.option import Option

app = CommandApp()


@app.command()
def report(
    run: Annotated[Path, Option("A run folder of bench sweep.", "RUN", positional=True)],
    gantt: Annotated[
        list[str] | None,
        Option("Folder name of a cell whose programs are drawn individually; repeatable.", "CELL"),
    ] = None,
    evaluation: Annotated[
        list[str] | None,
        Option(
            "SWE-bench's report on a cell's predictions.jsonl, for its pass rate; repeatable.",
            "CELL=FILE",
        ),
    ] = None,
    table: TableOption = TableDetail.BRIEF,
) -> None:
    """Write and print the report of a run folder again: bench report runs/NAME

    [bold]Examples[/bold]

      bench report runs/NAME --table full

      bench report runs/NAME --gantt continuum_jps0.3_seed1
    """
    print_report(
        run, gantt=gantt or (), evaluations=evaluation or (), full=table is TableDetail.FULL
    )
