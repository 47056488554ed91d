"""Draws the page that compares runs on several machines, of several models, or after several
bursts. It needs no network, and links to the pages of the runs.

In: reports of the runs. Out: one page; for a folder with `members.json` also the pages of its
runs, `cells.csv` and `cells.json`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from reports.answer.capacity_context import noun_of
from reports.answer.left_out import programs_left_out, so_far
from reports.answer.members import (
    MemberRun,
    after_bursts,
    by_burst,
    by_load,
    headline,
    member_runs,
    unlike_step_times,
)
from reports.answer.per_gpu import capacities_by_run, caveats, differing, most_per_gpu
from reports.answer.provenance import timing, workload
from reports.answer.report import REPORT, Report
from reports.figures.styles import legend, styles
from reports.numbers import digits
from reports.page.environment import write_page
from reports.page.member_figures import burst_figures, capacity_figures
from reports.page.write import write, write_cells
from reports.run_folder.members import Member, members_record, read_members
from reports.table import Table
from servers.basics.phrasing import counted, listed, seconds


@dataclass(frozen=True, slots=True)
class MembersReport:
    reports: Sequence[tuple[Member, Report]]
    runs: Sequence[MemberRun]
    command: Sequence[str] = ()
    """The command that made all runs, if one did."""

    @property
    def path(self) -> Path:
        """The overview of a sweep."""
        return self.runs[0].member.folder.parent / REPORT

    @property
    def headline(self) -> str:
        sweep = self.runs[0].sweep
        first = headline(self.runs, noun_of(sweep))
        if self.runs[0].member.burst is not None:
            first = after_bursts(self.runs)
        finished = sum(len(report.cells) for _, report in self.reports)
        missing = [each for _, report in self.reports for each in report.missing]
        return f"{programs_left_out(sweep)} {so_far(first, missing, finished)}".lstrip()

    @property
    def findings(self) -> list[str]:
        return most_per_gpu(self.runs)

    @property
    def shared_caveats(self) -> list[str]:
        """Those that the answers of all runs have."""
        each = [run.answer.caveats for run in self.runs]
        return [c for c in each[0] if all(c in other for other in each)]

    @property
    def caveats(self) -> list[str]:
        """Sentences that concern all runs."""
        return [*unlike_step_times(self.runs), *caveats(self.runs), *self.shared_caveats]

    @property
    def capacities(self) -> Table | None:
        return capacities_by_run(self.runs) if any(run.capacities for run in self.runs) else None

    @property
    def failed_gates(self) -> list[str]:
        return [f"{m.folder.name}/{g}" for m, report in self.reports for g in report.failed_gates]

    @property
    def missing(self) -> list[tuple[str, str]]:
        """Cells without a result, and the reason."""
        return [
            (f"{m.folder.name}/{cell}", why)
            for m, report in self.reports
            for cell, why in report.missing
        ]


def write_members(folder: Path) -> MembersReport:
    """Write the pages of a folder with `members.json` and of the runs in it."""
    reports = [(member, write(member.folder)) for member in read_members(folder)]
    found = MembersReport(reports, member_runs(reports), members_record(folder).made_by.argv)
    write_cells(folder, _all_cells(reports))
    draw(found, folder / REPORT)
    return found


def draw(found: MembersReport, out: Path) -> None:
    runs, sweep = found.runs, found.runs[0].sweep
    variants = {v.name: v for run in runs for v in run.sweep.variants}
    style = styles(variants.values())
    workloads = {workload(run.sweep) for run in runs}
    same = workloads.pop() if len(workloads) == 1 else ""
    has_bursts = runs[0].member.burst is not None
    figures = burst_figures(by_burst(runs), style) if has_bursts else capacity_figures(runs, style)
    capacities = found.capacities
    write_page(
        out,
        "members.html.j2",
        headline=found.headline,
        findings=found.findings,
        caveats=found.caveats,
        baseline=sweep.baseline,
        ladder=runs[0].ladder,
        slo=runs[0].slo,
        context=_heading(runs),
        figures=figures,
        legend=legend(list(variants), style, list(variants)),
        capacities=capacities,
        by_load=None if capacities else by_load(runs),
        settings=_settings(runs),
        workload=same,
        noun="burst" if has_bursts else "machine",
        members=[
            _section(run, found, out, f"{timing(run.sweep)}." if same else "") for run in runs
        ],
        failed_gates=found.failed_gates,
        missing=found.missing,
        command=shlex.join(found.command),
    )


def _heading(runs: Sequence[MemberRun]) -> list[str]:
    sweep = runs[0].sweep
    models = dict.fromkeys(str(run.sweep.model) for run in runs)
    names = listed(list(dict.fromkeys(run.machine for run in runs)), at_most=4)
    machines = f"{counted(len(runs), 'machine')}: {names}"
    if runs[0].member.burst is not None:
        machines = f"{names}, {counted(len(runs), 'burst')}"
    words = (sweep.workload.name, listed(list(models)), machines)
    return [str(word) for word in (*words, sweep.virtual_time or sweep.engine) if word]


def _settings(runs: Sequence[MemberRun]) -> list[tuple[str, ...]]:
    rows = [("USD per GPU and hour", [digits(run.price.usd_per_h) for run in runs])]
    if runs[0].slo:
        rows.append(("mean JCT on the idle machine", [seconds(run.idle_mean_s) for run in runs]))
    return [(name, *values) for name, values in [*rows, *differing(runs)]]


def _section(run: MemberRun, found: MembersReport, out: Path, provenance: str) -> dict[str, Any]:
    """`provenance`: the run's own part, if the page describes the workload of all."""
    page = run.member.folder / REPORT
    left_out = programs_left_out(found.runs[0].sweep)  # The same programs run on every machine.
    shared = found.shared_caveats
    return {
        "label": run.label,
        "href": os.path.relpath(page, out.parent) if page.is_file() else "",
        # With its further seeds a run may have other numbers than the table.
        "headline": ""
        if run.dropped_seeds
        else run.answer.headline.removeprefix(left_out).lstrip(),
        "caveats": [caveat for caveat in run.answer.caveats if caveat not in shared],
        "provenance": provenance or run.answer.provenance,
    }


def _all_cells(reports: Sequence[tuple[Member, Report]]) -> pd.DataFrame:
    """Return the cells of all runs. Names of cells begin with their run folder."""
    found = [
        report.cells.assign(cell=member.folder.name + "/" + report.cells["cell"])
        for member, report in reports
        if not report.cells.empty
    ]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()
