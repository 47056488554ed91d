"""Writes reports of run folders.

In: a run folder. Out: its answer, figures and tables. pandas takes half a second to import, so it
is imported only when a report is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.answer.report import Report
    from reports.page.members import MembersReport

__all__ = ["write_members_report", "write_report"]


def write_report(run_folder: Path, gantt: Sequence[str] = ()) -> Report:
    """Write `report.html`, `cells.csv` and `cells.json` into a run folder, each atomically.

    The same folder gives the same bytes. `gantt` names the cells that are drawn program by program;
    by default the answer's.
    """
    from reports.page.write import write

    return write(run_folder, gantt)


def write_members_report(folder: Path) -> MembersReport:
    """Write the reports of a sweep on several machines: an overview, and one for each machine."""
    from reports.page.members import write_members

    return write_members(folder)
