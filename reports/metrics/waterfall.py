"""Divides the time of each job into parts, as docs/reference/metrics.md defines them.

In: the turns of a cell. Out: a column per part, in seconds. Only the turns of the root program are
divided; its waiting time for sub-agents is one part. The parts sum to the JCT, except for the
residual.
"""

from __future__ import annotations

import numpy as np

from reports.run_folder.turns import HITS, TRANSFER, Column, Turns

WATERFALL: dict[str, str] = {
    "lateness_s": "client lateness",
    "first_queue_s": "first queue",
    "requeue_s": "re-queue bubbles",
    "reload_s": "reload",
    "recomputed_prefill_s": "recomputed prefill",
    "first_prefill_s": "first prefill",
    "decode_queue_s": "queue of the decode engine",
    "transfer_s": "KV transfer",
    "decode_s": "decode",
    "preemption_s": "preemption loss",
    "tool_s": "tool time",
    "subagents_s": "waiting for sub-agents",
    "server_s": "server time (no breakdown)",
}
"""Label of each column, in the order in which they are shown."""
WITH_PAUSES = WATERFALL | {"tool_s": "tool time and pauses"}
"""The labels for a workload with pauses after turns without a tool, which `tool_s` includes."""
SAVABLE = (
    *("first_queue_s", "requeue_s", "reload_s", "recomputed_prefill_s"),
    *("decode_queue_s", "preemption_s"),
)
"""Parts that another scheduler could avoid."""


def waterfall(turns: Turns, codes: Column, arrival_s: Column, departure_s: Column) -> Turns:
    """Return the columns of `WATERFALL` per job. `codes` is the index of each turn's job.

    Values of jobs with a failed turn are meaningless.
    """
    root = turns["program_id"] == turns["job_id"]
    jobs, mine = len(arrival_s), codes[root]
    sums = {k: np.bincount(mine, v[root], jobs).astype(float) for k, v in _parts(turns).items()}
    ended = arrival_s.copy()
    np.maximum.at(ended, mine, turns["finished_at_s"][root])
    sums["subagents_s"] += departure_s - ended
    return sums


def estimated_slowdown(jct_s: Column, parts: Turns) -> Column:
    """Return JCT ÷ (JCT − the parts in `SAVABLE`). NaN if the engine does not report them."""
    least_s = jct_s - sum(parts[part] for part in SAVABLE)
    found = np.full(len(jct_s), np.nan)
    np.divide(jct_s, least_s, out=found, where=(parts["server_s"] == 0.0) & (least_s > 0.0))
    return found


def before_first_token_s(turns: Turns) -> Column:
    return turns["first_token_at_s"] - turns["sent_at_s"]


def in_server(turns: Turns) -> tuple[Column, Column, Column, Column]:
    """Return the times of queueing, prefill and decoding, and the time without a breakdown: that to
    the first token if the engine does not divide it; of an answer that was not streamed, all time
    except the parts that the engine reports."""
    undivided = np.isnan(turns["queue_s"]) | np.isnan(turns["prefill_s"])
    unstreamed = np.isnan(turns["decode_s"])
    queue = np.where(undivided & ~unstreamed, 0.0, np.nan_to_num(turns["queue_s"]))
    before = np.where(undivided, before_first_token_s(turns), 0.0)
    rest = turns["finished_at_s"] - turns["sent_at_s"] - queue
    for part in ("load_s", *TRANSFER, "preempted_s", "recompute_s"):
        rest = rest - turns[part]
    return (
        queue,
        np.where(undivided, 0.0, turns["prefill_s"]),
        np.nan_to_num(turns["decode_s"]),
        np.where(unstreamed, rest, before),
    )


def _parts(turns: Turns) -> Turns:
    """Return the parts of each turn. Prefill is in `server_s` if hits are not reported."""
    first = turns["turn"] == 0
    queue, prefill, decode, undivided = in_server(turns)
    again, _ = prefill_parts(turns, prefill)
    split = ~np.isnan(again)
    return {
        "lateness_s": turns["sent_at_s"] - turns["scheduled_at_s"],
        "first_queue_s": np.where(first, queue, 0.0),
        "requeue_s": np.where(first, 0.0, queue),
        "reload_s": turns["load_s"],
        "recomputed_prefill_s": np.nan_to_num(again),
        "first_prefill_s": np.where(split, prefill - again, 0.0),
        "decode_queue_s": turns["decode_queue_s"],
        "transfer_s": turns["transfer_s"],
        "decode_s": decode,
        "preemption_s": turns["preempted_s"] + turns["recompute_s"],
        "tool_s": turns["gap_s"],
        "subagents_s": turns["wait_s"],
        "server_s": undivided + np.where(split, 0.0, prefill),
    }


def prefill_parts(turns: Turns, prefill_s: Column) -> tuple[Column, Column]:
    """Return the time to compute what the previous turn's context contained, and what it did not;
    NaN if hits are not reported."""
    share = _recomputed_share(turns)
    return share * prefill_s, (1.0 - share) * prefill_s


def _recomputed_share(turns: Turns) -> Column:
    """Return the share of computed prompt tokens that the previous turn's context contained."""
    hits = sum(turns[hit] for hit in HITS)
    computed = turns["prompt_tokens"] - hits
    again = np.minimum(computed, np.maximum(0.0, turns["kept_tokens"] - hits))
    share = np.where(np.isnan(again), np.nan, 0.0)
    np.divide(again, computed, out=share, where=computed > 0)
    return share
