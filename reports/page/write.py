"""Writes the report of a run folder: `report.html`, `answer.json`, `cells.csv` and `cells.json`.

In: a run folder. Out: the files, and the sentences and tables to print. The files do not depend on
the clock: with the same version of zlib, a folder always gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pandas as pd

from reports.answer.capacity import capacity_answer, meaning
from reports.answer.capacity_context import also_serves, capacity_context, price_of
from reports.answer.capacity_rows import capacity_rows
from reports.answer.caveats import of_results
from reports.answer.costs import cost_sentences, job_costs
from reports.answer.document import ANSWER, document
from reports.answer.fails_first import fails_first
from reports.answer.left_out import programs_left_out, valid_capacities
from reports.answer.matrix import RateMatrix
from reports.answer.noise import only_tested, second_arms, with_noise
from reports.answer.other_units import other_units
from reports.answer.scenario import ScenarioTable, scenario_answer
from reports.answer.table import BackgroundTable, ResultTable, at_one_rate, merged
from reports.answer.verdict import Answer, answer
from reports.answer.workload import mostly_gaps, pause_share
from reports.figures.capacity import capacity
from reports.figures.drawing import without
from reports.figures.gantt import NO_TURNS, gantt
from reports.figures.interactivity import interactivity
from reports.figures.job_time import NO_BUBBLES, job_time
from reports.figures.knee import Knees
from reports.figures.memory import NO_MEMORY, memory, replica_memory
from reports.figures.overview import NO_HITS, figures
from reports.figures.styles import Style, styles
from reports.figures.tool_gaps import NO_TOOL_TIMES, tool_gaps
from reports.metrics.agents import unequal_work
from reports.metrics.cells import Results, collect
from reports.page.page import Drawn, MachineLink, page, section
from reports.run_folder.machines import siblings
from reports.run_folder.read import CellRun, Run, load_run, refuse_unknown
from reports.run_folder.turns import has_turns, refuse_without_turns
from reports.spreadsheet import escape_formula
from reports.statistics.points import Point, points, with_sustained, with_unstable
from reports.statistics.searched import Searched, searched
from servers.basics.atomic import write_file
from servers.basics.errors import InvalidInput, InvalidRunFolder
from servers.records.sweep import SweepRecord

REPORT = "report.html"


@dataclass(frozen=True, slots=True)
class Report:
    path: Path
    """The HTML file."""
    answer: list[str]
    """Sentences in order of importance."""
    matrix: RateMatrix
    """Mean JCTs by policy and rate, with capacities."""
    table: ResultTable
    """All numbers, rate by rate."""
    failed_gates: list[str]
    """Texts `cell: failed gates`. No gate checks saturation."""
    missing: tuple[tuple[str, str], ...]
    """Cells without a result, and the reason."""
    result: Answer
    points: Sequence[Point]
    cells: pd.DataFrame
    """The rows of `cells.csv`."""
    scenario: ScenarioTable | None = None

    def tables(
        self, full: bool
    ) -> list[RateMatrix | ResultTable | BackgroundTable | ScenarioTable]:
        """Return the matrix, and the tables of the jobs and of background requests: at the rate of
        the answer if numbers differ, or in full at all rates."""
        if self.scenario is not None:
            return [self.scenario]
        every = self.table.points
        here = every if full else [p for p in every if p.load == self.result.load]
        matrix = [self.matrix] if len({p.load for p in every}) > 1 or self.matrix.rows else []
        baseline, has_matrix = self.table.baseline, bool(matrix)
        block = self.table if full else at_one_rate(here, baseline, has_matrix=has_matrix)
        beside = [p for p in here if p.has_background and not p.unstable]
        background = [BackgroundTable(beside if full else merged(beside))] if beside else []
        return [*matrix, *([block] if block is not None and block.points else []), *background]


def write(run_folder: Path, shown: Sequence[str] = ()) -> Report:
    """Write the report. `shown` names the cells to draw program by program."""
    run = load_run(run_folder)
    results = collect(run)
    named = named_cells(run, results, shown)
    baseline = run.sweep.baseline
    search = searched(run)
    shown_results = results if search is None else search.at_shown_rates(results)
    measured = points(shown_results, baseline, steady=run.sweep.steady_state)
    found = only_tested(with_noise(measured, second_arms(run.sweep)), run.sweep)
    found = found if search is None else with_sustained(found, search.found)
    found = [] if run.sweep.scenario else found
    result = _with_programs_left_out(_answer(run, results, shown_results, found, search), run.sweep)
    style = styles(run.sweep.variants)
    drawn = _draw(run, shown_results, found, result, style, named, search, results.cells)
    shown_points = [] if run.sweep.scenario else with_unstable(found, shown_results)
    html = page(run, results, shown_points, result, drawn, style, _links(run_folder))
    write_cells(run_folder, results.cells)
    write_file(run_folder / REPORT, html.encode())
    write_file(run_folder / ANSWER, document(result, shown_points, run.sweep))
    failed = [f"{cell}: {gates}" for cell, gates in results.failed_gates.items()]
    rows = capacity_rows(result, price_of(run.sweep)) if result.capacities else ()
    return Report(
        run_folder / REPORT,
        result.sentences,
        RateMatrix(shown_points, rows, result.capacities, also_serves(run.sweep) if rows else ""),
        ResultTable(shown_points, baseline),
        failed,
        results.missing,
        result,
        found,
        results.cells,
        ScenarioTable(results.cells) if run.sweep.scenario else None,
    )


def _answer(
    run: Run,
    results: Results,
    shown: Results,
    found: Sequence[Point],
    search: Searched | None,
) -> Answer:
    """`shown`: the results at the rates of `found`."""
    if run.sweep.scenario is not None and not results.cells.empty:
        return scenario_answer(results, run.sweep)
    if search is None or results.cells.empty:
        return answer(found, shown, run.sweep, also=unequal_work(run))
    context = capacity_context(run.sweep, search.slo, search.idle_mean_s)
    caveats = [
        *mostly_gaps(results, search.found, run.sweep, search.slo),
        *of_results(found, shown, run.sweep),
    ]
    valid, left_out = valid_capacities(search.found, results, context.baseline)
    limits = fails_first(valid, results.cells, search.slo)
    result = capacity_answer(valid, found, context, run.sweep, caveats, left_out, limits)
    costs = job_costs(valid, results.cells, context.price, run.sweep.api_price)
    sentences = cost_sentences(costs, result.winners, run.sweep)
    return replace(
        result,
        costs=costs,
        findings=(*result.findings, *sentences),
        other_units=other_units(valid, results.cells),
    )


def _with_programs_left_out(result: Answer, sweep: SweepRecord) -> Answer:
    first = programs_left_out(sweep)
    return replace(result, headline=f"{first} {result.headline}") if first else result


def _links(run_folder: Path) -> list[MachineLink]:
    """Return links to the pages of the sweep's other machines, if it has several."""
    members = siblings(run_folder)
    links = [MachineLink("All machines", f"../{REPORT}", False)] if members else []
    here = run_folder.resolve()
    return links + [
        MachineLink(each.label, f"../{each.folder.name}/{REPORT}", each.folder == here)
        for each in members
    ]


def write_cells(folder: Path, cells: pd.DataFrame) -> None:
    """Write `cells.csv` and `cells.json`."""
    write_file(folder / "cells.csv", _csv(cells))
    write_file(folder / "cells.json", _json(cells))


def _draw(
    run: Run,
    results: Results,
    found: Sequence[Point],
    result: Answer,
    style: Mapping[str, Style],
    named: Mapping[str, CellRun],
    search: Searched | None,
    every: pd.DataFrame,
) -> Drawn:
    """`every`: all cells, also those at loads that `results` leaves out."""
    baseline = run.sweep.baseline
    strong = dict.fromkeys([baseline, result.winner.variant if result.winner else baseline])
    cells = answer_cells(run, results, result)
    drawable = {label: cell for label, cell in cells.items() if has_turns(cell.folder)}
    programs = named or dict(list(drawable.items())[: len(strong)])
    first = next(iter(drawable.values()), None)
    tool_times = (tool_gaps(first) if first else None) or NO_TOOL_TIMES
    pauses = pause_share(run.sweep) > 0
    rates = (
        ""
        if search is None
        else meaning(capacity_context(run.sweep, search.slo, search.idle_mean_s))
    )
    by_name = {} if search is None else {each.variant: each for each in search.found}
    knees = None if search is None else Knees(every, by_name, search.limits_s, search.ladder)
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
            tool_times if first or not cells else None,
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
    return orjson.dumps(
        cells.to_dict("records"), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )


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
