"""`bench open`: open a report in the browser."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

from harness.cli.options import CommandApp
from harness.load.option import Option
from reports.run_folder.find import RUNS, newest_report
from reports.run_folder.members import has_members
from servers.basics.errors import InvalidRunFolder

app = CommandApp()


@app.command("open")
def open_(
    run: Annotated[
        Path | None,
        Option("A run folder. Default: the run whose report is newest.", "[RUN]", positional=True),
    ] = None,
) -> None:
    """Open the report of a run in the browser. Without RUN, open the newest report."""
    path = report_to_open(run)
    print(path)
    if sys.stdout.isatty():
        webbrowser.open(path.resolve().as_uri())


def report_to_open(run: Path | None) -> Path:
    """Return the report of a run folder, or the newest report under `runs/`."""
    if run is None:
        if (newest := newest_report(RUNS)) is None:
            raise InvalidRunFolder(f"{RUNS}/ contains no report; create one with: bench sweep")
        return newest
    if not (run / "sweep.json").is_file() and not has_members(run):
        raise InvalidRunFolder(f"{run}: not a run folder; bench list runs lists them")
    if not (run / "report.html").is_file():
        raise InvalidRunFolder(f"{run}: contains no report; write it with: bench report {run}")
    return run / "report.html"
