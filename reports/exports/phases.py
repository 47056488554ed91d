"""Splits a turn's time in the server into stretches without gaps, in seconds.

In: a turn's record and its engine events. Out: stretches in order. With events, each stretch has
its measured time. Without them, the parts are in a fixed order, and time without a breakdown is one
stretch, `server`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from servers.records import EventRecord, TurnRecord

COMPUTES = "prefill"
"""State of a computing turn before its first token; afterwards it is `decode`."""
AFTER = {
    "arrival": "queue",
    "waiting_to_running": COMPUTES,
    "loading": "load",
    "loaded": COMPUTES,
    "preempted": "preempted",
    "evicted_to_running": COMPUTES,
    "unknown": "server",
}
"""The state that begins with an event."""
FIRST = "first"
"""The event of a first token, which comes from the turn's record."""


class Stretch(NamedTuple):
    name: str
    """`request` (on the way to the engine), `queue`, `load`, `prefill`, `decode`, `preempted`,
    `recompute` or `server`."""
    begin_s: float
    end_s: float


class _Mark(NamedTuple):
    at_s: float
    event: str
    recompute_s: float = 0.0
    """Time that the turn then spends on recomputing what a preemption discarded."""


def stretches(turn: TurnRecord, events: Sequence[EventRecord]) -> list[Stretch]:
    """Return the phases between `sent_at_s` and `finished_at_s`, none if the turn did not end."""
    begin_s, end_s = turn.sent_at_s, turn.finished_at_s
    if end_s is None:
        return []
    marks = [*_marks(turn, events), _Mark(end_s, "end")]
    found: list[Stretch] = []
    state, decoding, recompute_s = "request", False, 0.0
    for mark, (since_s, until_s) in zip(
        [_Mark(begin_s, ""), *marks], _spans(begin_s, end_s, marks), strict=False
    ):
        state, decoding = AFTER.get(mark.event, state), decoding or mark.event == FIRST
        recompute_s += mark.recompute_s
        if state != COMPUTES and not (state == "server" and decoding):
            found.append(Stretch(state, since_s, until_s))
        elif not decoding:
            found.append(Stretch(COMPUTES, since_s, until_s))
        else:
            recomputed_s = min(since_s + recompute_s, until_s)
            recompute_s = max(recompute_s - (recomputed_s - since_s), 0.0)
            found.append(Stretch("recompute", since_s, recomputed_s))
            found.append(Stretch("decode", recomputed_s, until_s))
    return [stretch for stretch in found if stretch.end_s > stretch.begin_s]


def _spans(begin_s: float, end_s: float, marks: Sequence[_Mark]) -> Iterator[tuple[float, float]]:
    """Yield the spans between marks, clipped to the turn, because clocks may differ slightly."""
    return pairwise([begin_s, *(min(max(mark.at_s, begin_s), end_s) for mark in marks)])


def _marks(turn: TurnRecord, events: Sequence[EventRecord]) -> list[_Mark]:
    """Return marks in order of time; the first token precedes other marks at the same time."""
    first_s = turn.first_token_at_s
    first = [] if first_s is None else [_Mark(first_s, FIRST)]
    others = _of_events(turn, events) if events else _of_record(turn)
    return sorted(first + others, key=lambda mark: mark.at_s)


def _of_events(turn: TurnRecord, events: Sequence[EventRecord]) -> list[_Mark]:
    """Return a mark per event. `recompute_s` is divided among resumptions by recomputed tokens.

    The engine records an arrival at the end of a step, so the queueing begins before that event.
    """
    first_s, queue_s = turn.first_token_at_s, turn.queue_s
    admitted_s = next((e.t for e in events if e.event == "waiting_to_running"), None)
    lost = [
        (e.prompt_length or 0) - (e.hit_length or 0)
        if e.event == "evicted_to_running" and first_s is not None and e.t >= first_s
        else 0
        for e in events
    ]
    rate = (turn.recompute_s or 0.0) / (sum(lost) or 1)
    marks = [
        _Mark(e.t, e.event, tokens * rate)
        for e, tokens in zip(events, lost, strict=True)
        if e.event in AFTER
    ]
    if admitted_s is None or queue_s is None:
        return marks
    reached = _Mark(admitted_s - queue_s, "arrival")
    return [reached, *(mark for mark in marks if mark.event != "arrival")]


def _of_record(turn: TurnRecord) -> list[_Mark]:
    sent_s, queue_s, load_s = turn.sent_at_s, turn.queue_s, turn.load_s or 0.0
    if queue_s is None:
        return [_Mark(sent_s, "unknown")]
    admitted_s = sent_s + queue_s
    return [
        _Mark(sent_s, "arrival"),
        _Mark(admitted_s, "loading"),
        _Mark(admitted_s + load_s, "loaded"),
    ]
