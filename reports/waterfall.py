"""Turns of a cell in; where the time of each of its jobs went out, as docs/metrics.md defines it.

Only the root program's turns are split; what it waits for its sub-agents is one part. Seconds; the
parts sum to the JCT, and what they miss of it is the residual.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.load import HITS

Floats = npt.NDArray[Any]

WATERFALL: dict[str, str] = {
    "lateness_s": "client lateness",
    "first_queue_s": "first queue",
    "requeue_s": "re-queue bubbles",
    "reload_s": "reload",
    "recomputed_prefill_s": "recomputed prefill",
    "first_prefill_s": "first prefill",
    "decode_s": "decode",
    "preemption_s": "preemption loss",
    "tool_s": "tool time",
    "subagents_s": "waiting for sub-agents",
    "server_s": "in the server, not told apart",
}
"""Column, and what people call it; in the order in which they are shown."""
SAVABLE = ("first_queue_s", "requeue_s", "reload_s", "recomputed_prefill_s", "preemption_s")
"""What another scheduler could have spared the job."""


def waterfall(turns: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """One row per row of `jobs` (index job_id; arrival_s, departure_s), columns `WATERFALL`, 0
    where there is nothing of a kind. Of jobs with a failed turn they mean nothing."""
    root = (turns["program_id"] == turns["job_id"]).to_numpy()
    mine = turns[root]
    codes = jobs.index.get_indexer(pd.Index(mine["job_id"]))
    sums = {k: np.bincount(codes, v, len(jobs)) for k, v in _parts(mine).items()}
    ended = jobs["arrival_s"].to_numpy(copy=True)
    np.maximum.at(ended, codes, mine["finished_at_s"].to_numpy())
    sums["subagents_s"] += jobs["departure_s"].to_numpy() - ended
    return pd.DataFrame(sums, index=jobs.index)[list(WATERFALL)]


def slowdown(jct_s: Floats, parts: pd.DataFrame) -> Floats:
    """JCT ÷ what is left of it without `SAVABLE`; NaN where the engine does not tell these."""
    least_s = jct_s - parts[list(SAVABLE)].to_numpy().sum(axis=1)
    told = (parts["server_s"].to_numpy() == 0.0) & (least_s > 0.0)
    return np.divide(jct_s, least_s, out=np.full(len(jct_s), np.nan), where=told)


def untold(turns: pd.DataFrame) -> Floats:
    """Whether the engine keeps to itself what came before a turn's first token."""
    silent: Floats = np.isnan(turns[["queue_s", "prefill_s"]].to_numpy()).any(axis=1)
    return silent


def before_first_token_s(turns: pd.DataFrame) -> Floats:
    return np.asarray(turns["first_token_at_s"] - turns["sent_at_s"])


def _parts(turns: pd.DataFrame) -> dict[str, Floats]:
    """Of each turn; prefill whose hits are not told stays in `server_s`."""
    silent = untold(turns)
    first = turns["turn"].to_numpy() == 0
    queue = np.where(silent, 0.0, turns["queue_s"])
    prefill = np.where(silent, 0.0, turns["prefill_s"])
    again = _recomputed_share(turns)
    split = ~np.isnan(again)
    again = np.where(split, again, 0.0) * prefill
    return {
        "lateness_s": (turns["sent_at_s"] - turns["scheduled_at_s"]).to_numpy(),
        "first_queue_s": np.where(first, queue, 0.0),
        "requeue_s": np.where(first, 0.0, queue),
        "reload_s": turns["load_s"].to_numpy(),
        "recomputed_prefill_s": again,
        "first_prefill_s": np.where(split, prefill - again, 0.0),
        "decode_s": turns["decode_s"].to_numpy(),
        "preemption_s": (turns["preempted_s"] + turns["recompute_s"]).to_numpy(),
        "tool_s": turns["gap_s"].to_numpy(),
        "subagents_s": turns["wait_s"].to_numpy(),
        "server_s": np.where(silent, before_first_token_s(turns), np.where(split, 0.0, prefill)),
    }


def _recomputed_share(turns: pd.DataFrame) -> Floats:
    """Of the prompt tokens that were computed: those that the previous turn's context held."""
    prompt, kept = turns["prompt_tokens"].to_numpy(), turns["kept_tokens"].to_numpy()
    hits = turns[list(HITS)].to_numpy().sum(axis=1)
    computed = prompt - hits
    again = np.minimum(computed, np.maximum(0.0, kept - hits))
    share = np.where(np.isnan(again), np.nan, 0.0)
    np.divide(again, computed, out=share, where=computed > 0)
    return share
