"""`bench open`: find the report to open."""

from __future__ import annotations

from pathlib import Path

from reports.run_folder.find import RUNS, newest_report
from reports.run_folder.machines import has_members
from servers.basics.errors import InvalidRunFolder


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
