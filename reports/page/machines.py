"""Writes the report of a sweep on several machines, or after several bursts: an overview, and a
page for each.

In: a folder with `machines.json`. Out: `report.html`, `cells.csv` and `cells.json` in it and in
each run folder. The overview links to the pages of the runs, which have the figures.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from reports.answer.capacity_context import noun_of, price_of
from reports.answer.left_out import programs_left_out, so_far
from reports.answer.machines import OnMachine, by_load, headline, matrix, unlike_step_times
from reports.answer.provenance import timing, workload
from reports.figures.legend import highlighted, legend
from reports.figures.styles import styles
from reports.loads import ladder_of
from reports.page.bursts import by_variant, figure, highest, recoveries, table
from reports.page.environment import write_page
from reports.page.write import REPORT, Report, write, write_cells
from reports.run_folder.machines import Member, read_machines
from reports.run_folder.read import read_sweep
from servers.basics.phrasing import counted, gpus_in_words, listed
from servers.records.sweep import SweepRecord


@dataclass(frozen=True, slots=True)
class MachinesReport:
    path: Path
    """The HTML file of the overview."""
    headline: str
    caveats: Sequence[str]
    """Sentences that concern all machines."""
    machines: tuple[tuple[Member, Report], ...]

    @property
    def failed_gates(self) -> list[str]:
        return [f"{m.folder.name}/{g}" for m, report in self.machines for g in report.failed_gates]

    @property
    def missing(self) -> list[tuple[str, str]]:
        """Cells without a result, and the reason."""
        return [
            (f"{m.folder.name}/{cell}", why)
            for m, report in self.machines
            for cell, why in report.missing
        ]


def write_machines(folder: Path) -> MachinesReport:
    members, argv = read_machines(folder)
    sweeps = [read_sweep(member.folder) for member in members]
    reports = tuple((member, write(member.folder)) for member in members)
    found = [
        _on_machine(member, report, sweep)
        for (member, report), sweep in zip(reports, sweeps, strict=True)
    ]
    baseline = sweeps[0].baseline
    shared = [c for c in found[0].answer.caveats if all(c in m.answer.caveats for m in found)]
    caveats = [*unlike_step_times(_provenances(members, sweeps)), *shared]
    missing = [each for _, report in reports for each in report.missing]
    finished = sum(len(report.cells) for _, report in reports)
    left_out = programs_left_out(sweeps[0])  # The same programs run on every machine.
    bursts = _bursts(found, sweeps[0]) if members[0].burst is not None else None
    first = bursts["headline"] if bursts else headline(found, baseline, noun_of(sweeps[0]))
    sentence = f"{left_out} {so_far(first, missing, finished)}".lstrip()
    workloads = {workload(sweep) for sweep in sweeps}
    same = workloads.pop() if len(workloads) == 1 else ""
    overview = MachinesReport(folder / REPORT, sentence, caveats, reports)
    write_cells(folder, _all_cells(reports))
    write_page(
        overview.path,
        "machines.html.j2",
        headline=overview.headline,
        baseline=baseline,
        ladder=ladder_of(sweeps[0].arrivals),
        context=_heading(sweeps[0], members),
        matrix=None if bursts else matrix(found),
        bursts=bursts,
        capacity=any(machine.answer.capacities for machine in found),
        by_load=by_load(found),
        caveats=caveats,
        workload=same,
        machines=[
            _section(machine, shared, left_out, f"{timing(sweep)}." if same else None)
            for machine, sweep in zip(found, sweeps, strict=True)
        ],
        failed_gates=overview.failed_gates,
        missing=overview.missing,
        command=shlex.join(argv),
    )
    return overview


def _bursts(found: Sequence[OnMachine], sweep: SweepRecord) -> dict[str, Any]:
    """Return the sentences, the table and the figure of a sweep after several bursts."""
    own, style = by_variant(found), styles(sweep.variants)
    rates = [rate for rate in sweep.jps if rate is not None]
    drawn, ordered = figure(own, style), found[0].answer.winners
    chosen = highlighted(list(own), [sweep.baseline], ordered)
    return {
        "headline": " ".join([highest(found), *(recoveries(own, rate) for rate in rates)]),
        "table": table(own, rates),
        "figures": [drawn] if drawn else [],
        "legend": legend(list(own), style, chosen),
    }


def _on_machine(member: Member, report: Report, sweep: SweepRecord) -> OnMachine:
    answer, cells = report.result, report.cells
    usd_per_job = math.nan
    if answer.winner is not None:
        here = (cells["variant"] == answer.winner.variant) & (cells["load"] == answer.load)
        usd_per_job = float(cells[here]["usd_per_job"].mean())
    baseline = sweep.baseline
    points = report.table.points
    return OnMachine(member, answer, points, usd_per_job, baseline, price_of(sweep))


def _provenances(members: Sequence[Member], sweeps: Sequence[SweepRecord]) -> dict[str, str]:
    return {
        member.label: kind
        for member, sweep in zip(members, sweeps, strict=True)
        if (kind := sweep.profile.provenance)
    }


def _heading(sweep: SweepRecord, members: Sequence[Member]) -> list[str]:
    workload = sweep.workload.name
    engine = sweep.virtual_time or sweep.engine
    gpus = [gpus_in_words(member.hardware, member.gpus) for member in members]
    machines = f"{counted(len(members), 'machine')}: {listed(list(dict.fromkeys(gpus)), at_most=4)}"
    if members[0].burst is not None:
        machines = f"{members[0].model} on {gpus[0]}, {counted(len(members), 'burst')}"
    return [str(word) for word in (workload, machines, engine) if word]


def _section(
    machine: OnMachine, shared: Sequence[str], left_out: str, provenance: str | None
) -> dict[str, Any]:
    """`left_out`: a sentence on all machines, which the page already has. `provenance`: the
    machine's own part, if the page describes the workload of all."""
    return {
        "label": machine.member.label,
        "href": f"{machine.member.folder.name}/{REPORT}",
        "headline": machine.answer.headline.removeprefix(left_out).lstrip(),
        "caveats": [caveat for caveat in machine.answer.caveats if caveat not in shared],
        "provenance": provenance or machine.answer.provenance,
    }


def _all_cells(reports: Sequence[tuple[Member, Report]]) -> pd.DataFrame:
    """Return the cells of all machines. Names of cells begin with their run folder."""
    found = [
        report.cells.assign(cell=member.folder.name + "/" + report.cells["cell"])
        for member, report in reports
        if not report.cells.empty
    ]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()
