"""Reads the answer of a run folder, with all numbers that its page, tables and exports show.

In: a run folder. Out: a `Report`; nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from reports.answer.capacity import capacity_answer
from reports.answer.capacity_context import CapacityContext, also_serves
from reports.answer.capacity_rows import capacity_rows
from reports.answer.caveats import caveats_of
from reports.answer.costs import cost_sentences, job_costs, other_units
from reports.answer.fails_first import fails_first
from reports.answer.left_out import programs_left_out, valid_capacities
from reports.answer.noise import only_tested, second_arms, with_noise
from reports.answer.scenario import ScenarioTable, scenario_answer
from reports.answer.starvation import first_turns_wait
from reports.answer.table import BackgroundTable, RateMatrix, ResultTable, at_one_rate, merged
from reports.answer.verdict import Answer, answer
from reports.answer.workload import mostly_gaps
from reports.metrics.agents import unequal_work
from reports.metrics.cells import Results, collect
from reports.run_folder.read import Run, load_run
from reports.statistics.points import Point, points, with_sustained, with_unstable
from reports.statistics.searched import Searched, searched

REPORT = "report.html"


@dataclass(frozen=True, slots=True)
class Report:
    run: Run
    results: Results
    shown: Results
    """The results at the loads of the tables; a search has cells at others too."""
    search: Searched | None
    points: Sequence[Point]
    shown_points: Sequence[Point]
    """Points, and those without a steady state."""
    result: Answer
    kept: bool = False
    """Whether the files of an earlier report were kept, as no finished cell can be read now."""

    @property
    def path(self) -> Path:
        """The HTML file, which `reports.page.write` writes."""
        return self.run.folder / REPORT

    @property
    def answer(self) -> list[str]:
        """Sentences in order of importance."""
        return self.result.sentences

    @property
    def cells(self) -> pd.DataFrame:
        """The rows of `cells.csv`."""
        return self.results.cells

    @property
    def missing(self) -> tuple[tuple[str, str], ...]:
        """Cells without a result, and the reason."""
        return self.results.missing

    @property
    def failed_gates(self) -> list[str]:
        """Texts `cell: failed gates`. No gate checks saturation."""
        return [f"{cell}: {gates}" for cell, gates in self.results.failed_gates.items()]

    @property
    def matrix(self) -> RateMatrix:
        """Mean JCTs by policy and rate, with capacities."""
        sweep, capacities = self.run.sweep, self.result.capacities
        rows = capacity_rows(self.result)
        return RateMatrix(self.shown_points, rows, capacities, also_serves(sweep) if rows else "")

    @property
    def table(self) -> ResultTable:
        """All numbers, rate by rate."""
        return ResultTable(self.shown_points, self.run.sweep.baseline)

    def tables(
        self, full: bool
    ) -> list[RateMatrix | ResultTable | BackgroundTable | ScenarioTable]:
        """Return the matrix, and the tables of the jobs and of background requests: at the rate of
        the answer if numbers differ, or in full at all rates."""
        if self.run.sweep.scenario is not None:
            return [ScenarioTable(self.cells)]
        every, matrix = self.shown_points, self.matrix
        here = every if full else [p for p in every if p.load == self.result.load]
        has_matrix = len({p.load for p in every}) > 1 or bool(matrix.rows)
        baseline = self.run.sweep.baseline
        block = self.table if full else at_one_rate(here, baseline, has_matrix=has_matrix)
        beside = [p for p in here if p.has_background and not p.unstable]
        background = [BackgroundTable(beside if full else merged(beside))] if beside else []
        shown = [block] if block is not None and block.points else []
        return [*([matrix] if has_matrix else []), *shown, *background]


def read_report(run_folder: Path) -> Report:
    run = load_run(run_folder)
    results, search, sweep = collect(run), searched(run), run.sweep
    shown = results if search is None else search.at_shown_rates(results)
    measured = points(shown, sweep.baseline, steady=sweep.steady_state)
    found = only_tested(with_noise(measured, second_arms(sweep)), sweep)
    found = found if search is None else with_sustained(found, search.found)
    found = [] if sweep.scenario else found
    result = _answer(run, results, shown, found, search)
    if first := programs_left_out(sweep):
        result = replace(result, headline=f"{first} {result.headline}")
    shown_points = [] if sweep.scenario else with_unstable(found, shown)
    return Report(run, results, shown, search, found, shown_points, result)


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
    context = CapacityContext(run.sweep, search.slo, search.idle_mean_s)
    done = {cell.key: cell.done for cell in run.cells}
    caveats = [
        *first_turns_wait(search.found, done, search.slo),
        *mostly_gaps(results, search.found, run.sweep, search.slo),
        *caveats_of(found, shown, run.sweep, at_rates=False),
    ]
    valid, left_out = valid_capacities(search.found, results, run.sweep.baseline)
    limits = fails_first(valid, results.cells, search.slo)
    result = capacity_answer(valid, found, context, caveats, left_out, limits)
    costs = job_costs(valid, results.cells, context.price, run.sweep.api_price)
    sentences = cost_sentences(costs, result.winners, run.sweep)
    return replace(
        result,
        costs=costs,
        findings=(*result.findings, *sentences),
        other_units=other_units(valid, results.cells),
    )
