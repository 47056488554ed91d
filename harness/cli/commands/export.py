"""`bench export`: writes a run's turns, jobs and events as files for other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.console import complain

app = typer.Typer(rich_markup_mode="rich", add_completion=False)
SHOWN = 5


class Form(StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    TIMESTAMPS = "timestamps"
    CHROME = "chrome"


HELP = """Export a run's turns, jobs and events as files for other tools.

parquet, csv: a table of all turns and one of all jobs. chrome: a timeline of each cell, for
ui.perfetto.dev. timestamps: each cell as the Continuum fork's scheduler_timestamps. Exit code 1:
a cell could not be exported; the other cells are exported.

[bold]Examples[/bold]

  bench export runs/NAME --format parquet

  bench export runs/NAME --format chrome --cell continuum_jps0.3_seed1
"""


@app.command(help=HELP)
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of bench sweep.")],
    form: Annotated[Form, typer.Option("--format", help="Format of the files.")],
    cell: Annotated[
        list[str] | None,
        typer.Option("--cell", metavar="NAME", help="Export only this cell; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Default: RUN/export.")
    ] = None,
) -> None:
    from reports.exports.write import export as write

    with one_line_errors():
        found = write(run, form.value, out or run / "export", cell or ())
    for path in found.paths[:SHOWN]:
        print(path)
    if more := len(found.paths[SHOWN:]):
        print(f"and {more} more files")
    for name, why in found.missing:
        complain(f"not exported: {name}: {why}")
    if found.missing:
        raise typer.Exit(1)
