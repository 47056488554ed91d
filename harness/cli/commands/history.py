"""`bench history`: record the results of a sweep for each commit, and draw their trend."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.errors import one_line_errors
from servers.basics.errors import InvalidInput

HELP = "Record and draw the trend of results over commits."
app = typer.Typer(rich_markup_mode="rich", add_completion=False, no_args_is_help=True, help=HELP)

File = Annotated[
    Path, typer.Option("--file", metavar="FILE", help="The history file (JSON lines).")
]
FILE = Path("history.jsonl")

ADD_HELP = """Add the results of each policy under each load to the history.

A commit is added only once. All runs of a history must have the same settings.

[bold]Examples[/bold]

  bench history add runs/NAME --label $(git rev-parse --short HEAD)

  bench history add baseline.json.gz --label v1.0 --when 2026-01-31T12:00:00Z
"""


@app.command("add", help=ADD_HELP)
def add_command(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run folder, or a file written by bench compare --save."
        ),
    ],
    label: Annotated[
        str, typer.Option("--label", metavar="COMMIT", help="The commit that the run measured.")
    ],
    file: File = FILE,
    when: Annotated[
        str | None, typer.Option("--when", metavar="ISO", help="Date of the entry. Default: now.")
    ] = None,
) -> None:
    from reports.compare.baseline import read_side
    from reports.compare.history import add

    with one_line_errors():
        added = add(file, read_side(run), label, _date(when))
    print(f"{file}: {added} added for {label}" if added else f"{file}: {label} was added before")


@app.command("show")
def show_command(file: File = FILE) -> None:
    """Print the latest result of each policy and load, its change, and its jumps."""
    from harness.cli.tables import show_rows
    from reports.compare.history import HEAD, read_history, row

    with one_line_errors():
        history = read_history(file)
    show_rows([HEAD, *map(row, history.series())])


@app.command("draw")
def draw_command(
    file: File = FILE,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="HTML page to write.")] = Path(
        "history.html"
    ),
) -> None:
    """Draw the trend of each policy at each load, and mark jumps with their commit."""
    from reports.compare.history import read_history
    from reports.compare.history_page import draw

    with one_line_errors():
        draw(read_history(file), out)
    print(f"page: {out}")


def _date(text: str | None) -> datetime:
    if text is None:
        return datetime.now(UTC).replace(microsecond=0)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"--when {text}: use a time, e.g. 2026-01-31T12:00:00Z") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
