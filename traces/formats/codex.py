"""Rollouts of Codex, with the rollouts of their sub-agents (`~/.codex/sessions/…/rollout-*.jsonl`).

In: lines `{timestamp, type, payload}`. A `token_count` event ends each call of the model; its items
precede it, and the outputs of its tools follow or precede it. Out: a program for each rollout.
`docs/reference/trace-formats.md` has the rules and repairs.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.formats.about import PERMISSION, About
from traces.formats.codex_rollout import Rollout, parent_id
from traces.formats.shared.linked import first_lines, split
from traces.formats.shared.sessions import make_programs
from traces.lenient import Repairs, mapping
from traces.program import Program

ABOUT = About(
    name="codex",
    order=3,
    keys=(("timestamp", "type", "payload"),),
    holds="sessions of Codex",
    tool_times=PERMISSION,
    sub_agents=True,
    accuracy="counts sum to the recorded total in 102 of 102 calls",
    without="without token counts (before 0.44): refused",
)

KINDS = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted"})


def sniff(first_bytes: bytes) -> bool:
    return any(map(_is_line, first_lines(first_bytes)))


def _is_line(line: JsonObject) -> bool:
    is_item = text(line.get("type")) in KINDS and "payload" in line
    return is_item or line.get("record_type") == "state"


def links(data: bytes, _path: Path) -> set[str]:
    """Return the ids of a rollout, of its source if it was forked, and of its sub-agents, whose
    files may be in the folders of later days."""
    return {id for line in data.split(b"\n") for id in _ids(line)} - {""}


def _ids(line: bytes) -> Iterator[str]:
    if b'"session_meta"' not in line[:200] and b'"new_thread_id"' not in line:
        return
    try:
        payload = mapping(mapping(json.loads(line)).get("payload"))
    except (ValueError, RecursionError):
        return
    yield identifier(payload.get("new_thread_id"))
    if payload.get("type") is None:
        yield identifier(payload.get("id"))
        yield parent_id(payload)


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    rollouts: dict[str, Rollout] = {}
    for part in split(data, name):
        rollout = Rollout(tuple(part.lines(repairs)), part.name, repairs)
        other = rollouts.get(rollout.id)
        if other is not None:
            repairs.add("a second file of a rollout: the longer one is read")
        if other is None or rollout.length > other.length:
            rollouts[rollout.id] = rollout
    for rollout in rollouts.values():
        parent = rollouts.get(rollout.parent_id)
        rollout.read(parent if parent is not rollout else None)
    if not any(rollout.thread.calls for rollout in rollouts.values()):
        raise TraceRejected("no token_count event with the tokens of a call")
    for rollout in rollouts.values():
        _add_launches(rollout, rollouts)
    return make_programs([rollout.thread for rollout in rollouts.values()], repairs)


def _add_launches(rollout: Rollout, rollouts: Mapping[str, Rollout]) -> None:
    """Add where the parent starts a sub-agent, gives it further tasks, and awaits it."""
    parent = rollouts.get(rollout.parent_id)
    is_sub_agent = "subagent" in mapping(rollout.meta.get("source"))
    is_sub_agent |= rollout.meta.get("thread_source") == "subagent"
    if parent is None or parent is rollout or not is_sub_agent or not parent.thread.calls:
        return
    thread, waits = rollout.thread, parent.waits.get(rollout.id, [])
    before = parent.thread.last_call_before(thread.started_s or 0.0)
    thread.launch(parent.started.get(rollout.id, before), None)
    for sent in parent.sent.get(rollout.id, []):
        thread.launch(sent.call, sent.tool.called_s)
    latest_s = list(accumulate((wait.tool.answered_s or 0.0 for wait in waits), max))
    for begin, end, launch in thread.runs():
        ended_s = max((call.end_s or 0.0 for call in thread.calls[begin:end]), default=0.0)
        first = bisect_left(latest_s, ended_s)
        awaited_by = waits[first].call if first < len(waits) else None
        thread.launches[begin] = replace(launch, awaited_by=awaited_by)
