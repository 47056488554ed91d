"""Computes the goodput of a cell: the share of its turns and jobs that are within the SLO.

In: the latencies of the measured turns, which are stored with the numbers of a cell because sweeps
with different SLOs share cells, and the SLO of the run. Out: columns of `cells.csv`.
"""

from __future__ import annotations

import math

import numpy as np

from reports.capacity.slo import JCT, Limit, Slo, parse_slo
from reports.metrics.metric import SHARE, Group, Metric, Value, mean
from reports.metrics.waterfall import before_first_token_s
from reports.run_folder.read import Run
from reports.run_folder.turns import Column, Turns, finished
from servers.basics.errors import InvalidInput, InvalidRunFolder
from servers.records.done import Times

DIGITS = 4
"""Significant digits of a stored latency."""
SECONDS_OF_TURNS = {
    "ttft": "ttft_s",
    "first_ttft": "ttft_s",
    "tpot": "tpot_s",
    "speed": "token_s",
}
"""The column of `latencies` that limits of each measure compare."""


def slo_of(run: Run) -> Slo | None:
    """Return the SLO of a run that searches capacities. Raises InvalidRunFolder."""
    search = run.sweep.search
    if not search:
        return None
    try:
        return parse_slo(search.slo)
    except InvalidInput as error:
        reason = str(error).removeprefix("--slo ")
        raise InvalidRunFolder(f"{run.folder}/sweep.json: search.slo {reason}") from None


def latencies(turns: Turns, jobs: Turns) -> Turns:
    """Return columns with a value per turn without an error: the index of its job in `jobs`, -1 if
    it is not there, whether it is the first of its job, and its times in seconds: to the first
    token, between tokens, and per token from sending on. NaN if there is nothing to measure."""
    good = finished(turns)
    ids, tokens = good["job_id"], good["output_tokens"]
    index = {job: place for place, job in enumerate(jobs["job_id"])}
    first_s = before_first_token_s(good)
    whole_s = good["finished_at_s"] - good["sent_at_s"]
    tpot_s, token_s = np.full(len(ids), math.nan), np.full(len(ids), math.nan)
    np.divide(whole_s - first_s, tokens - 1, out=tpot_s, where=tokens > 1)
    np.divide(whole_s, tokens, out=token_s, where=tokens > 0)
    return {
        "job": np.array([index.get(job, -1) for job in ids], dtype=int),
        "first": (good["turn"] == 0) & (good["program_id"] == ids),
        **{
            name: np.array([float(f"{v:.{DIGITS}g}") for v in values])
            for name, values in (("ttft_s", first_s), ("tpot_s", tpot_s), ("token_s", token_s))
        },
    }


def goodput(slo: Slo, idle: Times, of_turns: Turns, jct_s: Column) -> dict[str, Value]:
    """Return the columns. Limits of a mean or a percentile apply to each turn or job by itself."""
    if not len(jct_s):
        return dict.fromkeys(GOODPUT.columns, math.nan)
    job, limits = of_turns["job"], [limit for limit in slo.limits if limit.measure != JCT]
    turn_is_good = np.ones(len(job), dtype=bool)
    for limit in limits:
        turn_is_good &= _within(limit, idle, of_turns)
    job_is_good = np.ones(len(jct_s), dtype=bool)
    for limit in slo.limits:
        if limit.measure == JCT:
            job_is_good &= jct_s <= limit.limit_s(idle)
    job_is_good[job[~turn_is_good & (job >= 0)]] = False
    turns = mean(turn_is_good) if limits else math.nan
    return dict(zip(GOODPUT.columns, (turns, mean(job_is_good)), strict=True))


def _within(limit: Limit, idle: Times, of_turns: Turns) -> Column:
    within = ~(of_turns[SECONDS_OF_TURNS[limit.measure]] > limit.limit_s(idle))
    return within | ~of_turns["first"] if limit.measure == "first_ttft" else within


GOODPUT = Group(
    lambda _: {},  # The numbers of a cell do not depend on an SLO: `collect` adds these columns.
    (
        Metric("goodput_turns", SHARE, "higher", "Turns in SLO", pool="mean").means(
            "Share of the measured turns that are within the SLO.",
            "With `ttft_p95<=5s` the TTFT of such a turn is at most 5 s. Unknown without a limit of"
            " turns, and without a steady state.",
        ),
        Metric("goodput_jobs", SHARE, "higher", "Jobs in SLO", pool="mean").means(
            "Share of the measured jobs that are within the SLO, with all of their turns.",
            "Low at capacity with a limit on turns, which one of many turns easily exceeds.",
        ),
    ),
)
