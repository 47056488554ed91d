"""Renders the HTML page of a run, which needs no network.

In: the results, the answer and the figures. Out: one HTML text. Templates escape by default; the
data of scripts is compressed and in base64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reports.answer.capacity_context import also_serves, noun_of, price_of
from reports.answer.capacity_rows import capacity_table
from reports.answer.costs import cost_table
from reports.answer.provenance import basis, command, facts, heading, left_out, price_in_words
from reports.answer.report import Report
from reports.answer.speed_ups import grid
from reports.answer.verdict import Answer
from reports.answer.workload import compared_with_agents
from reports.figures.drawing import Figure
from reports.figures.styles import Style, fastest, highlighted, legend
from reports.loads import ladder_of
from reports.metrics.agents import agent_rows
from reports.metrics.interactivity import scenario_points, with_most_agents
from reports.numbers import NAME_LETTERS
from reports.page.environment import page_of
from reports.page.schedulers import Schedulers
from reports.page.tables import background, cell_table, fairness, routers
from reports.page.tiles import tiles
from reports.run_folder.read import Run
from reports.statistics.points import Point

MOST_CAVEATS = 3
"""Most caveats on the first screen; the others follow further down."""
MOST_NAMES = 12
"""The first screen lists at most this many schedulers, or links to the list."""


class MemberLink(NamedTuple):
    """A link to the page of a machine of the same sweep."""

    text: str
    href: str
    here: bool
    """Whether the link points to the page that contains it."""


class Section(NamedTuple):
    figures: Sequence[Figure] = ()
    left_out: Sequence[str] = ()
    """Sentences in place of figures that lack data."""


def section(*drawings: Figure | str | None) -> Section:
    figures = [drawing for drawing in drawings if isinstance(drawing, Figure)]
    return Section(figures, [drawing for drawing in drawings if isinstance(drawing, str)])


@dataclass(frozen=True, slots=True)
class Drawn:
    first: Figure | None
    """The picture of the answer, on the first screen."""
    overview: Section
    job_time: Section
    inside: Section
    """Figures of single cells."""

    @property
    def all(self) -> list[Figure]:
        sections = (section(self.first), self.overview, self.job_time, self.inside)
        return [figure for each in sections for figure in each.figures]


def page(
    report: Report,
    drawn: Drawn,
    style: Mapping[str, Style],
    machines: Sequence[MemberLink] = (),
) -> str:
    run, results, answer = report.run, report.results, report.result
    points = report.shown_points
    strong = [p.variant for p in (answer.baseline, answer.winner) if p is not None]
    named = [*strong, run.sweep.baseline, *_worst(answer)]
    in_scenario = with_most_agents(scenario_points(results.cells) if run.sweep.scenario else [])
    ranked = _best_first(points, answer) or [p.variant for p in in_scenario]
    drawn_names = {p.variant for p in points} | {c.variant for c in answer.capacities}
    drawn_names |= {p.variant for p in in_scenario}
    shown = [v for v in run.sweep.variants if v.name in drawn_names]
    names, references = [v.name for v in shown], [v.name for v in shown if v.reference]
    chosen = highlighted(names, [*named, *references], ranked)
    return page_of(
        "report.html.j2",
        answer=answer,
        schedulers=Schedulers(run.sweep.variants, run.sweep.baseline),
        long_names=any(len(name) > NAME_LETTERS for name in names),
        machines=machines,
        basis=basis(run.sweep),
        noun=noun_of(run.sweep),
        tiles=tiles(answer, run.sweep.baseline),
        caveats=_caveats(answer, run),
        most_caveats=MOST_CAVEATS,
        most_names=MOST_NAMES,
        capacities=capacity_table(answer, price_of(run.sweep)),
        costs=cost_table(answer.costs),
        price=price_in_words(run.sweep.price),
        api_price=run.sweep.api_price,
        also_serves=also_serves(run.sweep),
        ladder=ladder_of(run.sweep.arrivals),
        baseline=run.sweep.baseline,
        context=heading(run.sweep),
        steady=run.sweep.steady_state,
        grid=grid(points, answer, run.sweep.baseline),
        drawn=drawn,
        legend=legend(names, style, chosen, strong),
        cells=cell_table(results.cells, run.sweep.baseline),
        measured=run.sweep.virtual_time is None,
        fairness=fairness(points, answer.load),
        background=background(points, answer.load),
        routers=routers(run.sweep.variants, points, answer),
        agents=agent_rows(run, {str(row["cell"]): str(row["load"]) for row in results.rows}),
        missing=results.missing,
        gates=list(results.failed_gates.items()),
        left_out=left_out(run.sweep),
        facts=facts(run.sweep),
        command=command(run.sweep),
    )


def _caveats(answer: Answer, run: Run) -> list[str]:
    """Return the caveats, with the comparison of the workload with real agents among the three at
    the top."""
    compared = compared_with_agents(run.sweep.workload)
    first, others = answer.caveats[: MOST_CAVEATS - 1], answer.caveats[MOST_CAVEATS - 1 :]
    return [*first, *filter(None, [compared]), *others]


def _best_first(points: Sequence[Point], answer: Answer) -> list[str]:
    """Return the variants by capacity, or by mean JCT if the run searched no capacities."""
    own = [c for c in answer.capacities if not c.reference]
    found = [(value.value, c.variant) for c in own if (value := c.load)]
    return [name for _, name in sorted(found, reverse=True)] or fastest(points, answer.load)


def _worst(answer: Answer) -> list[str]:
    """Return the variant with the lowest capacity, or the slowest one, which figures name."""
    own = [c for c in answer.capacities if not c.reference]
    if own:
        return [min(own, key=lambda c: c.load.value if c.load else 0.0).variant]
    return [] if answer.slowest is None else [answer.slowest.variant]
