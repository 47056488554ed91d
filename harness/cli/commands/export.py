"""`bench export`: write a run's turns, jobs and events as files for other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import CommandApp
from harness.console import print_message
from harness.load.option import Option
from servers.basics.phrasing import counted

app = CommandApp()
MAX_PRINTED_PATHS = 5


class ExportFormat(StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    CHROME = "chrome"


HELP = """Export a run's turns, jobs and events as files for other tools.

parquet, csv: a table of all turns and one of all jobs. chrome: a timeline of each cell, for
ui.perfetto.dev. Exit code 1: some cells could not be exported. The buttons of a report save its
figures as PNG, SVG and PDF.

[bold]Examples[/bold]

  bench export runs/NAME --format parquet

  bench export runs/NAME --format chrome --cell continuum_jps0.3_seed1

  bench export runs/NAME --format csv --out tables
"""


@app.command(help=HELP)
def export(
    run: Annotated[Path, Option("A run folder of bench sweep.", "RUN", positional=True)],
    format: Annotated[ExportFormat, Option("Format of the files.")],
    cell: Annotated[list[str] | None, Option("Export only this cell; repeatable.", "NAME")] = None,
    out: Annotated[Path | None, Option("Default: RUN/export.", "FOLDER")] = None,
) -> None:
    from reports.exports.write import export as write

    exported = write(run, format.value, out or run / "export", cell or ())
    for path in exported.paths[:MAX_PRINTED_PATHS]:
        print(path)
    if more := len(exported.paths[MAX_PRINTED_PATHS:]):
        print(f"and {more} more files")
    for name, reason in exported.missing:
        print_message(f"not exported: {name}: {reason}")
    if without := exported.without_turns:
        cells = f"{counted(len(without), 'cell')} of {exported.cells + len(without)}"
        print_message(
            f"not exported: {cells}, whose turns were not kept; keep them with bench sweep "
            f"{run}/sweep.toml --out {run} --keep turns"
        )
    if exported.missing or exported.without_turns:
        raise typer.Exit(1)
