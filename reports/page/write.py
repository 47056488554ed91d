"""Writes the report of a run folder: `report.html`, `answer.json`, `cells.csv` and `cells.json`.

In: a run folder. Out: the files, and the sentences and tables to print. The files do not depend on
the clock: with the same version of zlib, a folder always gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pandas as pd

from reports.answer.capacity import meaning
from reports.answer.capacity_context import CapacityContext
from reports.answer.document import ANSWER, document
from reports.answer.report import REPORT, Report, read_report
from reports.answer.verdict import Answer
from reports.answer.workload import pause_share
from reports.figures.capacity import capacity
from reports.figures.drawing import without
from reports.figures.gantt import NO_TURNS, gantt
from reports.figures.interactivity import interactivity
from reports.figures.job_time import NO_BUBBLES, job_time
from reports.figures.knee import Knees
from reports.figures.memory import NO_MEMORY, memory, replica_memory
from reports.figures.overview import NO_HITS, figures
from reports.figures.styles import Style, styles
from reports.metrics.cells import Results, rows_of
from reports.page.page import Drawn, MemberLink, page, section
from reports.run_folder.members import labels, siblings
from reports.run_folder.read import CellRun, Run, refuse_unknown
from reports.run_folder.turns import has_turns, refuse_without_turns
from reports.statistics.points import Point
from reports.table import escape_formula
from servers.basics.atomic import write_file
from servers.basics.errors import InvalidInput, InvalidRunFolder


def write(run_folder: Path, shown: Sequence[str] = ()) -> Report:
    """Write the report, unless it would replace an earlier one by an empty one. `shown` names the
    cells to draw program by program."""
    report = read_report(run_folder)
    named = named_cells(report.run, report.results, shown)
    if _is_unreadable(report) and (run_folder / ANSWER).is_file():
        return replace(report, kept=True)
    style = styles(report.run.sweep.variants)
    drawn = _draw(report, style, named)
    html = page(report, drawn, style, _links(run_folder))
    write_cells(run_folder, report.cells)
    write_file(report.path, html.encode())
    write_file(run_folder / ANSWER, document(report.result, report.shown_points, report.run.sweep))
    return report


def _is_unreadable(report: Report) -> bool:
    """Return whether cells have finished and none of them can be read, as those of an older
    version."""
    folders = (report.run.folder / name for name, _ in report.missing)
    return report.cells.empty and any((folder / "done.json").is_file() for folder in folders)


def _links(run_folder: Path) -> list[MemberLink]:
    """Return links to the pages of the sweep's other runs, if it has several."""
    members = siblings(run_folder)
    links = [MemberLink("All machines", f"../{REPORT}", False)] if members else []
    here = run_folder.resolve()
    return links + [
        MemberLink(label, f"../{each.folder.name}/{REPORT}", each.folder == here)
        for label, each in zip(labels(members), members, strict=True)
    ]


def write_cells(folder: Path, cells: pd.DataFrame) -> None:
    write_file(folder / "cells.csv", _csv(cells))
    write_file(folder / "cells.json", _json(cells))


def _draw(report: Report, style: Mapping[str, Style], named: Mapping[str, CellRun]) -> Drawn:
    run, results, result, search = report.run, report.shown, report.result, report.search
    baseline, found = run.sweep.baseline, report.points
    strong = dict.fromkeys([baseline, result.winner.variant if result.winner else baseline])
    cells = answer_cells(run, results, result)
    drawable = {label: cell for label, cell in cells.items() if has_turns(cell.folder)}
    programs = named or dict(list(drawable.items())[: len(strong)])
    pauses = pause_share(run.sweep) > 0
    rates = (
        ""
        if search is None
        else meaning(CapacityContext(run.sweep, search.slo, search.idle_mean_s))
    )
    by_name = {} if search is None else {each.variant: each for each in search.found}
    knees = None if search is None else Knees(report.cells, by_name, search.limits_s, search.ladder)
    sustained = capacity(result.capacities, style, strong, rates, result.winners)
    overview = figures(found, style, list(strong), knees)
    parts = job_time(
        *(stable_jobs(results, found), style, list(strong), result.load),
        steady=run.sweep.steady_state,
        pauses=pauses,
    )
    if run.sweep.scenario is not None:
        sustained = interactivity(results.cells, style)
    return Drawn(
        sustained,
        section(*overview, without("hits", overview, NO_HITS)),
        section(*parts, without("bubbles", parts, NO_BUBBLES)),
        section(
            gantt(programs, pauses=pauses) or (NO_TURNS if cells else None),
            memory(cells) or NO_MEMORY,
            replica_memory(cells),
        ),
    )


def stable_jobs(results: Results, found: Sequence[Point]) -> pd.DataFrame:
    """Return the jobs of variants that have a steady state with all seeds. If a variant has one
    with some seeds only, these have lighter work."""
    jobs, stable = results.jobs, {(p.load, p.variant) for p in found}
    pairs = zip(jobs["load"], jobs["variant"], strict=True) if len(jobs) else ()
    return jobs.loc[[pair in stable for pair in pairs]]


def _csv(cells: pd.DataFrame) -> bytes:
    texts = cells[[name for name in cells if cells[name].dtype.kind not in "bif"]]
    safe = cells.assign(**texts.map(lambda v: escape_formula(v) if isinstance(v, str) else v))
    return safe.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode()


def _json(cells: pd.DataFrame) -> bytes:
    """Return the cells as JSON; NaN becomes null."""
    return orjson.dumps(rows_of(cells), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


MAX_CELLS = 20
"""At most this many cells have a memory figure, which limits the size of the page."""


def answer_cells(run: Run, results: Results, answer: Answer) -> dict[str, CellRun]:
    """Return cells of the first seed at the answer's load, by label.

    The baseline and the winner come first, then the others by mean JCT.
    """
    cells = results.cells
    if cells.empty or answer.load is None:
        return {}
    here = cells[cells["load"] == answer.load]
    here = here[here["seed"] == here["seed"].min()].sort_values("jct_mean_s", kind="stable")
    strong = [p.variant for p in (answer.winner, answer.baseline) if p is not None]
    first = here[here["variant"].isin(strong)]["cell"].tolist()
    return _labelled(run, results, list(dict.fromkeys([*first, *here["cell"]]))[:MAX_CELLS])


def named_cells(run: Run, results: Results, names: Sequence[str]) -> dict[str, CellRun]:
    """Return the named cells by label. Raises InvalidInput."""
    finished = [] if results.cells.empty else results.cells["cell"].tolist()
    known = [*finished, *dict(results.missing)]
    refuse_unknown("--gantt", names, known, run.folder)
    for name, why in results.missing:
        if name in names:
            raise InvalidInput(f"--gantt {name}: {why}")
    found = _labelled(run, results, names)
    for cell in found.values():
        try:
            refuse_without_turns(cell)
        except InvalidRunFolder as error:
            raise InvalidInput(f"--gantt: {error}") from None
    return found


def _labelled(run: Run, results: Results, names: Sequence[str]) -> dict[str, CellRun]:
    if not names:
        return {}
    folders = {cell.folder.name: cell for cell in run.cells}
    rows = results.cells.set_index("cell")
    return {
        f"{rows['variant'][name]}, {rows['load'][name]}, seed {rows['seed'][name]}": folders[name]
        for name in names
    }
