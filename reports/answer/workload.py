"""Describes a workload, and compares it with recorded agents.

In: the workload of `sweep.json`. Out: sentences. The figures of recorded agents come from the
recipes fitted to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import pandas as pd

from reports.capacity.slo import JCT, Slo
from reports.metrics.cells import Results, amounts_of
from reports.statistics.capacities import VariantCapacity
from servers.basics.phrasing import seconds, share
from servers.records.settings import WorkloadRecord
from servers.records.sweep import SweepRecord
from traces.synthesis.known import fitted_recipe, shipped

QUANTITIES = {
    "turns": "turns",
    "new_tokens_per_later_turn": "new tokens per later turn",
    "tool_gap_s": "gap after a tool",
}
"""The compared quantities of a fitted recipe, by their names in `sweep.json`."""
MUCH = 2.0
"""A workload whose mean differs by at least this factor is unlike an agent's."""
MOST = 0.5
"""A larger share of the mean JCT counts as most of it."""
MIN_PAUSES = 0.01
"""A smaller share of every mean JCT gets no caveat."""


def compared_with_agents(workload: WorkloadRecord) -> str:
    """Return the sentences, or "" if the jobs are not known before the run."""
    means = workload.means
    if any(name not in means for name in QUANTITIES):
        return ""
    about = workload.about
    what = f"The workload is {about}: a job" if about else "A job"
    if workload.sub_agents:
        what += " without its sub-agents"
    others = [f"{name} {_figures(real)}" for name, real in recorded_agents().items()]
    return (
        f"{what} has {means['turns']:.0f} turns on average, a later turn adds"
        f" {means['new_tokens_per_later_turn']:,.0f} tokens to the prompt, and a tool call takes"
        f" {_seconds(means['tool_gap_s'])}. Recorded agents: {'; '.join(others)}."
        f" {_consequence(workload)}"
    ).rstrip()


def pause_share(sweep: SweepRecord) -> float:
    """Return the share of the jobs' gap time that follows turns without a tool."""
    return sweep.workload.means.get("pause_share", 0.0)


def pauses(jobs: pd.DataFrame, sweep: SweepRecord) -> list[str]:
    """Return a caveat if pauses are part of the mean JCTs. `jobs` is `Results.jobs`."""
    of_gaps = pause_share(sweep)
    if not of_gaps or jobs.empty:
        return []
    means = jobs.groupby(["load", "variant"])[["tool_s", "jct_s"]].mean()
    parts = of_gaps * means["tool_s"] / means["jct_s"]
    if not parts.max() >= MIN_PAUSES:
        return []
    low, high = share(parts.min()), share(parts.max())
    return [
        f"Pauses: about {low if low == high else f'{low} to {high}'} of the mean JCT are gaps after"
        " turns that call no tool, such as a person's thinking time. Figures and exports count"
        " them as tool time."
    ]


def mostly_gaps(
    results: Results, capacities: Sequence[VariantCapacity], sweep: SweepRecord, slo: Slo
) -> list[str]:
    """Return a caveat if most of the mean JCT at sustained rates is tool gaps. Capacities for an
    SLO on the JCT then show little of how long a user waits for the first token of an answer."""
    if any(limit.measure != JCT for limit in slo.limits):
        return []
    cells = _sustained(results.cells, capacities)
    if cells.empty:
        return []
    jobs = results.jobs[results.jobs["cell"].isin(cells["cell"])]
    means = jobs.groupby(["load", "variant"])[["tool_s", "jct_s"]].mean()
    parts = means["tool_s"] / means["jct_s"]
    if not parts.max() > MOST:
        return []
    low, high = share(parts.min()), share(parts.max())
    gaps = "tool gaps and pauses" if pause_share(sweep) else "tool gaps"
    span = low if low == high else f"{low} to {high}"
    sentence = (
        f"Jobs spend most of their time in {gaps}: {span} of the mean JCT at sustained rates."
        " Capacities limit the JCT, not the time to first token (TTFT)"
    )
    p95_s = [
        (float(own["ttft_p95_s"].mean()), f"{variant} at {load}")
        for (load, variant), own in cells.dropna(subset=["ttft_p95_s"]).groupby(["load", "variant"])
    ]
    if not p95_s:
        return [f"{sentence}."]
    ends = [f"{seconds(ttft_s)} ({where})" for ttft_s, where in (min(p95_s), max(p95_s))]
    return [f"{sentence}: P95 TTFT there is from {ends[0]} to {ends[1]}."]


def _sustained(cells: pd.DataFrame, capacities: Sequence[VariantCapacity]) -> pd.DataFrame:
    """Return the cells at rates that their variant sustains with all seeds, except references."""
    by_variant = {c.variant: c for c in capacities if not c.reference}
    return cells[
        [
            variant in by_variant and by_variant[variant].sustained_at(amount).is_all
            for variant, amount in zip(cells["variant"], amounts_of(cells), strict=True)
        ]
    ]


def _figures(real: Mapping[str, float]) -> str:
    return (
        f"{real['turns']:.0f} turns, {real['new_tokens_per_later_turn']:,.0f} tokens and"
        f" {_seconds(real['tool_gap_s'])}"
    )


def _consequence(workload: WorkloadRecord) -> str:
    """State what the differences mean for the reader; "" if no quantity differs by `MUCH` from all

    recorded agents, or if the jobs are the reader's own traces."""
    means = workload.means
    differs = any(
        all(_factor(means[name], real[name]) > MUCH for real in recorded_agents().values())
        for name in QUANTITIES
    )
    if not differs or not workload.recipe:
        return ""
    return (
        "With other agents the capacities and the best scheduler may differ: use --traces with"
        " your own recordings."
    )


def _factor(one: float, other: float) -> float:
    low, high = sorted((one, other))
    return high / low if low > 0 else math.inf


@cache
def recorded_agents() -> dict[str, dict[str, float]]:
    """Return the means of the recorded sets behind the shipped recipes, by recipe."""
    return {
        name: {key: figures[quantity].mean for key, quantity in QUANTITIES.items()}
        for name in reversed(shipped())
        if (figures := fitted_recipe(name).figures)
    }


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
