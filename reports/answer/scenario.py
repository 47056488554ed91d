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
from reports.numbers import digits
from reports.table import Fitted, Layout, Line, right
from servers.basics.phrasing import counted, listed, seconds, share, time_span
from servers.records.sweep import SweepRecord

HEADS = ("agents", "interactivity P90", "tokens/s/GPU", "output", "TTFT P90", "hits")
NUMBERS = (
    "interactivity_p90",
    "tokens_per_s_per_gpu",
    "output_tokens_per_s_per_gpu",
    "ttft_p90_s",
    "hit_ratio",
)


def scenario_points(cells: pd.DataFrame) -> pd.DataFrame:
    """Return a row per policy and number of agents, with means over seeds, of valid cells."""
    valid = cells[(cells["failed_gates"] == "") & (cells["tokens_per_s_per_gpu"] > 0)]
    means = valid.groupby(["variant", "agents"], sort=False)[list(NUMBERS)].mean().reset_index()
    return means.sort_values("agents", kind="stable")


def scenario_answer(results: Results, sweep: SweepRecord) -> Answer:
    points, scenario = scenario_points(results.cells), sweep.scenario
    name = scenario.name if scenario else ""
    caveats = tuple(filter(None, [*cells_without_a_valid_result(results), _broken(results.cells)]))
    if points.empty:
        return Answer(f"{name}: no cell has a valid result.", (), caveats, provenance(sweep))
    most = points["agents"].max()
    here = points[points["agents"] == most].sort_values("tokens_per_s_per_gpu", ascending=False)
    each = [
        f"{row.variant} {digits(row.tokens_per_s_per_gpu)} at {digits(row.interactivity_p90)}"
        for row in here.itertuples()
    ]
    window = time_span(scenario.window_s) if scenario else ""
    headline = (
        f"{name} with {counted(int(most), 'agent')}, tokens per second and GPU at the tokens per"
        f" second that 90% of the requests get: {listed(each)} (window of {window})."
    )
    return Answer(headline, (), caveats, provenance(sweep))


def _broken(cells: pd.DataFrame) -> str:
    rules = dict.fromkeys(rule for text in cells["broken_rules"] if text for rule in text.split("; "))
    if not rules:
        return ""
    return f"Not comparable with published results of the scenario: {'; '.join(rules)}."


@dataclass(frozen=True, slots=True)
class ScenarioTable(Fitted):
    cells: pd.DataFrame

    def layouts(self) -> Iterator[Layout]:
        lines = [
            Line(
                (
                    *(str(row.variant), f"{row.agents:g}", digits(row.interactivity_p90)),
                    *(digits(row.tokens_per_s_per_gpu), digits(row.output_tokens_per_s_per_gpu)),
                    *(seconds(row.ttft_p90_s), share(row.hit_ratio)),
                ),
                group=str(row.variant),
            )
            for row in scenario_points(self.cells).sort_values("variant").itertuples()
        ]
        for count in range(len(HEADS), 1, -1):
            shown = [line._replace(cells=line.cells[: count + 1]) for line in lines]
            yield Layout([("policy", "left"), *right(HEADS[:count])], shown)
