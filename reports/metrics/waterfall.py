"""Turns of a cell in; where the time of each of its jobs went out, as docs/reference/metrics.md
defines it.

Only the root program's turns are split; what it waits for its sub-agents is one part. Seconds; the
parts sum to the JCT, and what they miss of it is the residual.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reports.run_folder.turns import HITS, Column, Turns

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
    "server_s": "server time (no breakdown)",
}
"""Column, and what people call it; in the order in which they are shown."""
SAVABLE = ("first_queue_s", "requeue_s", "reload_s", "recomputed_prefill_s", "preemption_s")
"""What another scheduler could have spared the job."""


def waterfall(turns: Turns, codes: Column, arrival_s: Column, departure_s: Column) -> Turns:
    """Columns `WATERFALL` of jobs, of which `codes` says which one each turn belongs to; 0 where
    there is nothing of a kind. Of jobs with a failed turn they mean nothing."""
    root = turns["program_id"] == turns["job_id"]
    jobs, mine = len(arrival_s), codes[root]
    sums = {k: np.bincount(mine, v[root], jobs).astype(float) for k, v in _parts(turns).items()}
    ended = arrival_s.copy()
    np.maximum.at(ended, mine, turns["finished_at_s"][root])
    sums["subagents_s"] += departure_s - ended
    return sums


def slowdown(jct_s: Column, parts: Turns) -> Column:
    """JCT ÷ what is left of it without `SAVABLE`; NaN where the engine does not tell these."""
    least_s = jct_s - sum(parts[part] for part in SAVABLE)
    found = np.full(len(jct_s), np.nan)
    np.divide(jct_s, least_s, out=found, where=(parts["server_s"] == 0.0) & (least_s > 0.0))
    return found


def untold(turns: Turns) -> Column:
    """Whether the engine keeps to itself what came before a turn's first token."""
    return np.isnan(turns["queue_s"]) | np.isnan(turns["prefill_s"])


def before_first_token_s(turns: Turns) -> Column:
    return turns["first_token_at_s"] - turns["sent_at_s"]


class Server(NamedTuple):
    """A turn's time in the server, but for what PARTS has besides."""

    queue_s: Column
    prefill_s: Column
    decode_s: Column
    undivided_s: Column
    """What nobody told apart: all before the first token where the engine keeps it to itself; of an
    answer that came in one piece, all but what the engine tells."""


def in_server(turns: Turns) -> Server:
    silent, whole = untold(turns), np.isnan(turns["decode_s"])
    queue = np.where(silent & ~whole, 0.0, np.nan_to_num(turns["queue_s"]))
    before = np.where(silent, before_first_token_s(turns), 0.0)
    rest = turns["finished_at_s"] - turns["sent_at_s"] - queue
    for part in ("load_s", "preempted_s", "recompute_s"):
        rest = rest - turns[part]
    return Server(
        queue,
        np.where(silent, 0.0, turns["prefill_s"]),
        np.nan_to_num(turns["decode_s"]),
        np.where(whole, rest, before),
    )


def _parts(turns: Turns) -> Turns:
    """Of each turn; prefill whose hits are not told stays in `server_s`."""
    first = turns["turn"] == 0
    queue, prefill, decode, undivided = in_server(turns)
    share = _recomputed_share(turns)
    split = ~np.isnan(share)
    again = np.where(split, share, 0.0) * prefill
    return {
        "lateness_s": turns["sent_at_s"] - turns["scheduled_at_s"],
        "first_queue_s": np.where(first, queue, 0.0),
        "requeue_s": np.where(first, 0.0, queue),
        "reload_s": turns["load_s"],
        "recomputed_prefill_s": again,
        "first_prefill_s": np.where(split, prefill - again, 0.0),
        "decode_s": decode,
        "preemption_s": turns["preempted_s"] + turns["recompute_s"],
        "tool_s": turns["gap_s"],
        "subagents_s": turns["wait_s"],
        "server_s": undivided + np.where(split, 0.0, prefill),
    }


def _recomputed_share(turns: Turns) -> Column:
    """Of the prompt tokens that were computed: those that the previous turn's context held."""
    hits = sum(turns[hit] for hit in HITS)
    computed = turns["prompt_tokens"] - hits
    again = np.minimum(computed, np.maximum(0.0, turns["kept_tokens"] - hits))
    share = np.where(np.isnan(again), np.nan, 0.0)
    np.divide(again, computed, out=share, where=computed > 0)
    return share
