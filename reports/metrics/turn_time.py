"""Divides the time of turns in the server: what a turn waits for, and what slows its output.

In: the turns of a cell. Out: means per turn, in seconds. The first four parts sum to the TTFT, and
all parts to the time from sending a turn to its last token.
"""

from __future__ import annotations

import math

import numpy as np

from reports.metrics.alone import least_decode_s, work_of
from reports.metrics.metric import SECONDS, Facts, Group, Metric, Value, mean
from reports.metrics.waterfall import prefill_parts
from reports.run_folder.turns import Column, Turns, finished

BEFORE_FIRST_TOKEN = ("turn_queue_s", "turn_reload_s", "turn_recompute_s", "turn_prefill_s")
AFTER_FIRST_TOKEN = ("turn_stalled_s", "turn_batching_s", "turn_alone_s", "turn_preempted_s")
OF_FIRST_TURNS = ("first_turn_queue_s", "first_turn_reload_s", "first_turn_prefill_s")


def _turn_time(facts: Facts) -> dict[str, Value]:
    """Return the parts of the measured turns. A cell without a steady state may have ended before
    there were any, so all turns that ended count there."""
    turns = finished(facts.every) if facts.unstable else facts.good
    again_s, new_s = prefill_parts(turns, turns["prefill_s"])
    queue_s = turns["queue_s"] + turns["decode_queue_s"]
    reload_s = turns["load_s"] + turns["transfer_s"]
    decode_s = turns["decode_s"]
    stalled_s = np.minimum(_stalled_s(facts, turns), decode_s)
    alone_s = np.full(len(decode_s), math.nan)
    if facts.machine is not None:
        least_s = least_decode_s(work_of(turns, facts.machine), facts.machine)
        alone_s = np.minimum(least_s, decode_s - stalled_s)
    first = (turns["turn"] == 0) & (turns["program_id"] == turns["job_id"])
    values = (
        *(queue_s, reload_s, again_s, new_s),
        *(stalled_s, decode_s - stalled_s - alone_s, alone_s),
        turns["preempted_s"] + turns["recompute_s"],
        *(queue_s[first], reload_s[first], (again_s + new_s)[first]),
    )
    return {name: mean(each) for name, each in zip(TURN_TIME.columns, values, strict=True)}


def _stalled_s(facts: Facts, turns: Turns) -> Column:
    """Return for how long after the first token of each turn its replica also computed prompts."""
    stalled_s = np.zeros(len(turns["sent_at_s"]))
    if facts.cell.config.disaggregate is not None:
        return stalled_s
    parts = (facts.every, facts.requests)
    replica, end_s, prefill_s = (
        np.concatenate([np.nan_to_num(part[name]) for part in parts])
        for name in ("replica", "first_token_at_s", "prefill_s")
    )
    of_turn = np.nan_to_num(turns["replica"])
    for each in np.unique(of_turn):
        here, mine = (replica == each) & (prefill_s > 0), of_turn == each
        edges_s, busy_s = _busy(end_s[here] - prefill_s[here], end_s[here])
        ends = (turns["finished_at_s"][mine], turns["first_token_at_s"][mine])
        last_s, first_s = (np.interp(at_s, edges_s, busy_s) for at_s in ends)
        stalled_s[mine] = last_s - first_s
    return stalled_s


def _busy(starts_s: Column, ends_s: Column) -> tuple[Column, Column]:
    """Return times, and how long some interval was open until each."""
    if not len(starts_s):
        return np.zeros(1), np.zeros(1)
    edges_s = np.concatenate([starts_s, ends_s])
    opens = np.repeat([1, -1], len(starts_s))
    order = np.lexsort((-opens, edges_s))
    edges_s, is_open = edges_s[order], np.cumsum(opens[order]) > 0
    lasts_s = np.diff(edges_s) * is_open[:-1]
    return edges_s, np.concatenate([[0.0], np.cumsum(lasts_s)])


def _part(column: str, meaning: str, detail: str = "") -> Metric:
    return Metric(column, SECONDS).means(meaning, detail)


TURN_TIME = Group(
    _turn_time,
    (
        _part(
            "turn_queue_s",
            "Mean time that a turn waits for admission.",
            "The first four `turn_` parts sum to the mean TTFT. They are means over finished"
            " turns; without a steady state over all that ended.",
        ),
        _part("turn_reload_s", "Mean time in which KV is reloaded from a tier or transferred."),
        _part(
            *("turn_recompute_s", "Mean time to compute context that the cache had lost."),
            "As for [jobs](#where-a-jobs-time-goes).",
        ),
        _part(
            "turn_prefill_s",
            "Mean time to compute the new tokens of the prompt.",
            "In virtual time with the time of the prompt in the API server, as `prefill_s`.",
        ),
        _part(
            "turn_stalled_s",
            "Mean time of decoding while prompts of others were computed.",
            "Between the first and the last token of a turn, on its replica, without"
            " preemptions. 0 with `--disaggregate`.",
        ),
        _part(
            "turn_batching_s",
            "Mean time that other turns in the batch add to decoding.",
            "The rest of `decode_s`; unknown live.",
        ),
        _part("turn_alone_s", "Mean time that decoding would need alone, at least."),
        _part(
            *("turn_preempted_s", "Mean time lost by preemptions."), "`preempted_s` + `recompute_s`"
        ),
        _part("first_turn_queue_s", "Mean time that the first turn of a job waits for admission."),
        _part("first_turn_reload_s", "Mean time of first turns in which KV is reloaded."),
        _part("first_turn_prefill_s", "Mean time to compute the prompt of a first turn."),
    ),
)
