"""Computes the numbers of a load scenario such as AgentX, and whether the cell kept its rules.

In: the requests of the window. Out: columns of `cells.csv`; none without a scenario.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from reports.metrics.metric import TEXT, Facts, Group, Metric, Unit, Value, percentiles
from reports.metrics.waterfall import before_first_token_s
from reports.numbers import digits, whole
from reports.run_folder.turns import Column, failed_turns
from servers.basics.phrasing import share, time_span

MIN_WINDOW_S = 900
MAX_FAILED, MIN_COVERED = 0.1, 0.95
SESSIONS = 393
"""In the corpus on which vendors publish, `semianalysisai/cc-traces-weka-062126`."""


def _interactivity(facts: Facts) -> Mapping[str, Value]:
    scenario = facts.cell.config.scenario
    if scenario is None:
        return {}
    good, begin_s = facts.good, facts.span.begin_s
    whole_s = good["finished_at_s"] - good["sent_at_s"]
    answered = (good["output_tokens"] > 0) & (whole_s > 0)
    per_token_s = whole_s[answered] / good["output_tokens"][answered]
    half, most = percentiles(per_token_s, (50, 90))
    per_s = 1 / scenario.window_s / (facts.cell.config.gpus or 1)
    turns = facts.turns  # with those that a stall of the client delayed: they are work done
    ended = ~failed_turns(turns) & (turns["finished_at_s"] - begin_s < scenario.window_s)
    outputs, prompts = (
        float(turns[f"{name}_tokens"][ended].sum()) for name in ("output", "prompt")
    )
    return {
        "interactivity_p50": 1 / half,
        "interactivity_p90": 1 / most,
        "ttft_p90_s": percentiles(_known(before_first_token_s(good)), (90,))[0],
        "output_tokens_per_s_per_gpu": outputs * per_s,
        "tokens_per_s_per_gpu": (outputs + prompts) * per_s,
        "broken_rules": "; ".join(_broken(facts)),
    }


def _known(values: Column) -> Column:
    return values[~np.isnan(values)]


def _broken(facts: Facts) -> list[str]:
    """Return the rules of the scenario that the cell did not keep."""
    config, scenario = facts.cell.config, facts.cell.config.scenario
    if scenario is None:
        return []
    has_failed = failed_turns(facts.turns)
    failed = float(has_failed.mean()) if len(has_failed) else 0.0
    tokens_s = _known(facts.turns["finished_at_s"][~has_failed]) - facts.span.begin_s
    covered = float(tokens_s.max(initial=0.0)) / scenario.window_s
    roots = (config.workload.programs or 0) - (config.workload.sub_agents or 0)
    found = {
        f"window {time_span(scenario.window_s)}, at least 15 min": scenario.window_s < MIN_WINDOW_S,
        f"{roots} sessions, not the {SESSIONS} of the corpus": roots != SESSIONS,
        f"seed {config.seed}, not {scenario.published_seed}": (
            config.seed != scenario.published_seed
        ),
        f"{share(failed)} of the requests failed": failed > MAX_FAILED,
        f"answers cover {share(covered)} of the window": covered < MIN_COVERED,
        "virtual time, not a server": facts.cell.done.virtual_s is not None,
    }
    return [rule for rule, is_broken in found.items() if is_broken]


class ScenarioPoint(NamedTuple):
    """A policy with a number of agents: means over the seeds of valid cells."""

    variant: str
    agents: int
    interactivity_p90: float
    tokens_per_s_per_gpu: float
    output_tokens_per_s_per_gpu: float
    ttft_p90_s: float
    hit_ratio: float


def scenario_points(cells: pd.DataFrame) -> list[ScenarioPoint]:
    """Return the points, by policy in the order of the cells, then by agents."""
    if cells.empty:  # then it has no columns
        return []
    valid = cells[(cells["failed_gates"] == "") & (cells["tokens_per_s_per_gpu"] > 0)]
    names = list(dict.fromkeys(valid["variant"]))
    numbers = list(ScenarioPoint._fields[2:])
    means = valid.groupby(["variant", "agents"])[numbers].mean()
    points = [
        ScenarioPoint(*key, *row)
        for key, row in zip(means.index, means.values.tolist(), strict=True)
    ]
    return sorted(points, key=lambda point: names.index(point.variant))


def with_most_agents(points: Sequence[ScenarioPoint]) -> list[ScenarioPoint]:
    """Return the points with the highest number of agents, by tokens per second, highest first."""
    most = max((point.agents for point in points), default=0)
    found = [point for point in points if point.agents == most]
    return sorted(found, key=lambda point: -point.tokens_per_s_per_gpu)


TOKENS_PER_S, PER_GPU = Unit("tokens/s", digits), Unit("tokens/s/GPU", whole)
INTERACTIVITY = Group(
    _interactivity,
    (
        Metric("interactivity_p50", TOKENS_PER_S, "higher").means(
            "Output tokens per second from sending a request to its last token, median.",
            "Only with `--scenario`, like the following, of requests due in the window that"
            " ended without an error.",
        ),
        Metric("interactivity_p90", TOKENS_PER_S, "higher", "Interactivity P90").means(
            "90% of the requests get this many output tokens per second or more."
        ),
        Metric("ttft_p90_s", Unit("s"), "lower").means("P90 TTFT."),
        Metric("output_tokens_per_s_per_gpu", PER_GPU, "higher").means(
            "Output tokens of the requests that ended in the window, per second and GPU."
        ),
        Metric("tokens_per_s_per_gpu", PER_GPU, "higher", "Tokens/s/GPU").means(
            "Prompt and output tokens of these requests, per second and GPU.",
            "Cached prompt tokens count, as in the published numbers. Per server if the"
            " number of its GPUs is unknown.",
        ),
        Metric("broken_rules", TEXT).means(
            "The rules of the scenario that the cell did not keep.",
            "A window of at least 15 minutes, 393 sessions (the corpus, whose contents are not"
            " checked), seed 42, at most 10% failed requests, a last answer after 95% of the"
            " window, and a live server.",
        ),
    ),
)
