"""The answer of a run with a load scenario: interactivity and tokens per second and GPU by policy.

In: cells. Out: sentences, and a table for a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from reports.answer.caveats import cells_without_a_valid_result
from reports.answer.provenance import provenance
from reports.answer.verdict import Answer
from reports.metrics.cells import Results
from reports.metrics.interactivity import scenario_points, with_most_agents
from reports.numbers import digits, whole
from reports.table import Fitted, Layout, Line, right
from servers.basics.phrasing import counted, listed, seconds, share, time_span
from servers.records.sweep import SweepRecord

HEADS = ("agents", "interactivity P90", "tokens/s/GPU", "output", "TTFT P90", "hits")

LEADERS = 5
"""Policies that the headline names, besides the baseline."""


def scenario_answer(results: Results, sweep: SweepRecord) -> Answer:
    points, scenario = scenario_points(results.cells), sweep.scenario
    name = scenario.name if scenario else ""
    caveats = tuple(filter(None, [*cells_without_a_valid_result(results), _broken(results.cells)]))
    if not points:
        return Answer(f"{name}: no cell has a valid result.", (), caveats, provenance(sweep))
    references = {v.name for v in sweep.variants if v.reference}
    ranked = with_most_agents(points)
    best = [point for point in ranked if point.variant not in references] or ranked
    each = [
        f"{p.variant} {whole(p.tokens_per_s_per_gpu)} at {digits(p.interactivity_p90)}"
        for i, p in enumerate(best)
        if i < LEADERS or p.variant == sweep.baseline
    ]
    window = time_span(scenario.window_s) if scenario else ""
    headline = (
        f"{name} with {counted(ranked[0].agents, 'agent')}, tokens per second and GPU at the tokens"
        f" per second that 90% of the requests get: {listed(each)} (window of {window})."
    )
    return Answer(headline, (), caveats, provenance(sweep))


def _broken(cells: pd.DataFrame) -> str:
    rules = dict.fromkeys(
        rule for text in cells["broken_rules"] if text for rule in text.split("; ")
    )
    if not any(rules):
        return ""
    return f"Not comparable with published results of the scenario: {'; '.join(rules)}."


@dataclass(frozen=True, slots=True)
class ScenarioTable(Fitted):
    cells: pd.DataFrame

    def layouts(self) -> Iterator[Layout]:
        lines = [
            Line(
                (
                    *(p.variant, str(p.agents), digits(p.interactivity_p90)),
                    *(whole(p.tokens_per_s_per_gpu), digits(p.output_tokens_per_s_per_gpu)),
                    *(seconds(p.ttft_p90_s), share(p.hit_ratio)),
                ),
                group=p.variant,
            )
            for p in scenario_points(self.cells)
        ]
        for count in range(len(HEADS), 1, -1):
            shown = [line._replace(cells=line.cells[: count + 1]) for line in lines]
            yield Layout([("policy", "left"), *right(HEADS[:count])], shown)
