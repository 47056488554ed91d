"""Splits a turn's time in the server into stretches without gaps, in seconds.

In: a turn's record and its engine events. Out: stretches in order. With events, each stretch has
its measured time. Without them, the parts are in a fixed order, and time without a breakdown is one
stretch, `server`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from msgspec import UNSET

from servers.records.turns import EventRecord, TurnRecord

COMPUTES = "prefill"
"""State of a computing turn before its first token; afterwards it is `decode`."""
RESUMED = "evicted_to_running"
AFTER = {
    "arrival": "queue",
    "waiting_to_running": COMPUTES,
    "loading": "load",
    "loaded": COMPUTES,
    "handed_over": "decode_queue",
    "transferring": "transfer",
    "preempted": "preempted",
    RESUMED: COMPUTES,
    "unknown": "server",
}
"""The state that begins with an event."""
FIRST = "first"
"""The event of a first token, which comes from the turn's record."""


class Stretch(NamedTuple):
    name: str
    """`request` (on the way to the engine), `queue`, `load`, `prefill`, `decode_queue`, `transfer`,
    `decode`, `preempted`, `recompute` or `server`."""
    begin_s: float
    end_s: float


class _Mark(NamedTuple):
    at_s: float
    event: str
    tokens: float = 0
    """Tokens that a resumption recomputes; infinity if it is preempted before it has done so."""


class _Span(NamedTuple):
    state: str
    begin_s: float
    end_s: float
    tokens: float = 0
    """Tokens that are recomputed in it, as in `_Mark`."""

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


def stretches(turn: TurnRecord, events: Sequence[EventRecord]) -> list[Stretch]:
    """Return the phases between `sent_at_s` and `finished_at_s`, none if the turn did not end."""
    if turn.finished_at_s is None:
        return []
    spans = _spans(turn, events, turn.finished_at_s)
    recomputed_s = _divide(turn.recompute_s or 0.0, spans)
    found: list[Stretch] = []
    for index, span in enumerate(spans):
        decodes_from_s = min(span.begin_s + recomputed_s.get(index, 0.0), span.end_s)
        found.append(Stretch("recompute", span.begin_s, decodes_from_s))
        found.append(Stretch(span.state, decodes_from_s, span.end_s))
    return [stretch for stretch in found if stretch.end_s > stretch.begin_s]


def _spans(turn: TurnRecord, events: Sequence[EventRecord], end_s: float) -> list[_Span]:
    """Return the spans between the marks that have a length, with recomputation as a part of
    `decode`."""
    begin_s = turn.sent_at_s
    marks = [_Mark(begin_s, ""), *_marks(turn, events), _Mark(end_s, "end")]
    # Times are clipped to the turn, because clocks may differ slightly.
    times_s = [min(max(mark.at_s, begin_s), end_s) for mark in marks]
    spans: list[_Span] = []
    state, decoding, tokens = "request", False, 0.0
    for mark, (since_s, until_s) in zip(marks, pairwise(times_s), strict=False):
        state, decoding = AFTER.get(mark.event, state), decoding or mark.event == FIRST
        if mark.event == RESUMED:
            tokens = mark.tokens
        if since_s == until_s:
            continue
        if decoding and state in (COMPUTES, "server"):
            spans.append(_Span("decode", since_s, until_s, tokens))
            tokens = 0.0
        else:
            spans.append(_Span(state, since_s, until_s))
    return spans


def _divide(recompute_s: float, spans: Sequence[_Span]) -> dict[int, float]:
    """Return the parts of `recompute_s` by index of span.

    A resumption that is preempted before it adds a token only recomputes. The others share the rest
    in proportion to recomputed tokens, but each has at most the length of its span.
    """
    shares = [(span.length_s / span.tokens, i) for i, span in enumerate(spans) if span.tokens]
    left_tokens = sum(span.tokens for span in spans if span.tokens < inf)
    parts_s: dict[int, float] = {}
    for _, index in sorted(shares):
        tokens, part_s = spans[index].tokens, recompute_s
        if tokens < inf:
            part_s *= tokens / left_tokens
            left_tokens -= tokens
        parts_s[index] = min(part_s, spans[index].length_s)
        recompute_s -= parts_s[index]
    return parts_s


def _marks(turn: TurnRecord, events: Sequence[EventRecord]) -> list[_Mark]:
    """Return marks in order of time; the first token precedes other marks at the same time."""
    first_s = turn.first_token_at_s
    first = [] if first_s is None else [_Mark(first_s, FIRST)]
    # The events of a turn that two engines serve are not distinguished.
    by_events = events and turn.transfer_s is UNSET
    others = _of_events(turn, events) if by_events else _of_record(turn)
    return sorted(first + others, key=lambda mark: mark.at_s)


def _of_events(turn: TurnRecord, events: Sequence[EventRecord]) -> list[_Mark]:
    """Return a mark per event.

    The engine records an arrival at the end of a step, so the queueing begins before that event.
    """
    queue_s = turn.queue_s
    admitted_s = next((e.t for e in events if e.event == "waiting_to_running"), None)
    tokens = _recomputed_tokens(turn, events)
    marks = [
        _Mark(e.t, e.event, tokens.get(index, 0))
        for index, e in enumerate(events)
        if e.event in AFTER
    ]
    if admitted_s is None or queue_s is None:
        return marks
    reached = _Mark(admitted_s - queue_s, "arrival")
    return [reached, *(mark for mark in marks if mark.event != "arrival")]


def _recomputed_tokens(turn: TurnRecord, events: Sequence[EventRecord]) -> dict[int, float]:
    """Return the tokens that resumptions after the first token recompute, by index of event. At its
    next resumption a turn has the same length if it was preempted before it had recomputed them."""
    first_s = turn.first_token_at_s
    resumed = [i for i, e in enumerate(events) if e.event == RESUMED]
    lengths = [events[i].prompt_length or 0 for i in resumed]
    return {
        i: inf if length == following else max(0, length - (events[i].hit_length or 0))
        for i, length, following in zip(resumed, lengths, [*lengths, None][1:], strict=True)
        if first_s is not None and events[i].t >= first_s
    }


def _of_record(turn: TurnRecord) -> list[_Mark]:
    sent_s, queue_s, load_s = turn.sent_at_s, turn.queue_s, turn.load_s or 0.0
    if queue_s is None:
        return [_Mark(sent_s, "unknown")]
    admitted_s = sent_s + queue_s
    loaded_s = admitted_s + load_s
    marks = [_Mark(sent_s, "arrival"), _Mark(admitted_s, "loading"), _Mark(loaded_s, "loaded")]
    if turn.transfer_s is UNSET or turn.decode_queue_s is UNSET:
        return marks
    handed_over_s = loaded_s + (turn.prefill_s or 0.0)
    begins_s = handed_over_s + turn.decode_queue_s
    return [
        *marks,
        _Mark(handed_over_s, "handed_over"),
        _Mark(begins_s, "transferring"),
        _Mark(begins_s + turn.transfer_s, "loaded"),
    ]
