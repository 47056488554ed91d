"""A turn's line and the engine's events of it in; what it did when out, without gaps.

With events (engine.jsonl) each stretch lies where it was. Without them it is laid out as its parts
usually follow, and what a server does not tell is one stretch, `server`. Seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Record = Mapping[str, Any]

COMPUTES = "prefill"
"""Until the first token is out; then it decodes."""
AFTER = {
    "arrival": "queue",
    "waiting_to_running": COMPUTES,
    "loading": "load",
    "loaded": COMPUTES,
    "preempted": "preempted",
    "evicted_to_running": COMPUTES,
    "unknown": "server",
}
"""What begins with an event."""
FIRST = "first"
"""The event of a first token, which only the turn's line has."""


class Stretch(NamedTuple):
    name: str
    """`request` (on the way to the engine), `queue`, `load`, `prefill`, `decode`, `preempted`,
    `recompute` or `server`."""
    begin_s: float
    end_s: float


class _Mark(NamedTuple):
    at_s: float
    event: str
    owes_s: float = 0.0
    """From here on the turn rebuilds for so long what it had computed."""


def stretches(turn: Record, events: Sequence[Record]) -> list[Stretch]:
    """From `sent_at_s` to `finished_at_s`; empty for a turn that was never sent or never ended."""
    begin_s, end_s = turn.get("sent_at_s"), turn.get("finished_at_s")
    if begin_s is None or end_s is None:
        return []
    marks = [*_marks(turn, events), _Mark(end_s, "end")]
    found: list[Stretch] = []
    here, token, owed_s = "request", False, 0.0
    for mark, (since_s, until_s) in zip(
        [_Mark(begin_s, ""), *marks], _spans(begin_s, end_s, marks), strict=False
    ):
        here, token = AFTER.get(mark.event, here), token or mark.event == FIRST
        owed_s += mark.owes_s
        if here != COMPUTES and not (here == "server" and token):
            found.append(Stretch(here, since_s, until_s))
        elif not token:
            found.append(Stretch(COMPUTES, since_s, until_s))
        else:
            rebuilt_s = min(since_s + owed_s, until_s)
            owed_s = max(owed_s - (rebuilt_s - since_s), 0.0)
            found.append(Stretch("recompute", since_s, rebuilt_s))
            found.append(Stretch("decode", rebuilt_s, until_s))
    return [stretch for stretch in found if stretch.end_s > stretch.begin_s]


def _spans(begin_s: float, end_s: float, marks: Sequence[_Mark]) -> Iterator[tuple[float, float]]:
    """Between marks; the engine's clock may be a little off the client's."""
    return pairwise([begin_s, *(min(max(mark.at_s, begin_s), end_s) for mark in marks)])


def _marks(turn: Record, events: Sequence[Record]) -> list[_Mark]:
    """In order. A first token comes before what happens at the same time."""
    first_s = turn.get("first_token_at_s")
    first = [] if first_s is None else [_Mark(first_s, FIRST)]
    told = _of_events(turn, events) if events else _of_line(turn)
    return sorted(first + told, key=lambda mark: mark.at_s)


def _of_events(turn: Record, events: Sequence[Record]) -> list[_Mark]:
    """Queueing begins when the turn reached the engine, which notes it at the end of a step.
    Rebuilding is shared among resumptions by the tokens to rebuild."""
    first_s = turn.get("first_token_at_s")
    admitted_s = next((e["t"] for e in events if e["event"] == "waiting_to_running"), None)
    queue_s = turn.get("queue_s")
    lost = [
        e["prompt_length"] - e["hit_length"]
        if e["event"] == "evicted_to_running" and first_s is not None and e["t"] >= first_s
        else 0
        for e in events
    ]
    rate = (turn.get("recompute_s") or 0.0) / (sum(lost) or 1)
    marks = [
        _Mark(e["t"], e["event"], tokens * rate)
        for e, tokens in zip(events, lost, strict=True)
        if e["event"] in AFTER
    ]
    if admitted_s is None or queue_s is None:
        return marks
    reached = _Mark(admitted_s - queue_s, "arrival")
    return [reached, *(mark for mark in marks if mark.event != "arrival")]


def _of_line(turn: Record) -> list[_Mark]:
    sent_s, queue_s, load_s = turn["sent_at_s"], turn.get("queue_s"), turn.get("load_s") or 0.0
    if queue_s is None:
        return [_Mark(sent_s, "unknown")]
    admitted_s = sent_s + queue_s
    return [
        _Mark(sent_s, "arrival"),
        _Mark(admitted_s, "loading"),
        _Mark(admitted_s + load_s, "loaded"),
    ]
