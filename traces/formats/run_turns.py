"""Reads `turns.jsonl` of a run (docs/reference/run-folder.md) as a trace.

In: a line per turn. Out: programs in order of arrival, with the tool gaps that the run had. Failed
turns are left out. A sub-agent's line does not say where it forked, so it becomes a program of its
own, which is reported. Programs have messages if the recording kept them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from servers.errors import TraceRejected
from traces.lenient import (
    Repairs,
    brief,
    identifier,
    items,
    line_start,
    mapping,
    seconds,
    text,
    tokens,
)
from traces.program import Message, Program, Provenance, SharedPrefix, Turn


def sniff(first_bytes: bytes) -> bool:
    record = mapping(line_start(first_bytes))
    return "program_id" in record and "sent_at_s" in record


def load(data: bytes, _name: str, repairs: Repairs) -> list[Program]:
    by_program: dict[str, list[dict[str, Any]]] = {}
    for number, line in enumerate(data.splitlines(), 1):
        record = _record(line, number, repairs)
        if record is None:
            continue
        if record.get("error"):
            repairs.add("a turn that failed: left out")
        elif tokens(record.get("prompt_tokens")) and tokens(record.get("output_tokens")):
            by_program.setdefault(_id(record, "program_id") or "program", []).append(record)
        else:
            repairs.add("a turn without token counts: left out")
    if not by_program:
        raise TraceRejected("no turn in it has succeeded")
    for records in by_program.values():
        records.sort(key=lambda record: seconds(record.get("sent_at_s")) or 0.0)
        if _id(records[0], "job_id") not in ("", _id(records[0], "program_id")):
            repairs.add("a sub-agent, whose fork is not recorded: a program of its own")
    first_s = min(_sent_s(records[0]) for records in by_program.values())
    starts_s = {id: round(_sent_s(own[0]) - first_s, 6) for id, own in by_program.items()}
    ordered = sorted(by_program, key=lambda id: (starts_s[id], id))
    return [_program(id, by_program[id], starts_s[id], repairs) for id in ordered]


def _record(line: bytes, number: int, repairs: Repairs) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        repairs.add("an incomplete line: left out")
        return None
    if not isinstance(record, dict):
        raise TraceRejected(f"line {number} is no object; give a run's turns.jsonl")
    return record


def _id(record: Mapping[str, Any], field: str) -> str:
    return identifier(record.get(field))


def _sent_s(record: dict[str, Any]) -> float:
    return seconds(record.get("sent_at_s")) or 0.0


def _program(id: str, records: list[dict[str, Any]], start_s: float, repairs: Repairs) -> Program:
    turns: list[Turn] = []
    for place, record in enumerate(records):
        following = records[place + 1] if place + 1 < len(records) else {}
        turns.append(_turn(record, following, turns[-1] if turns else None, repairs))
    system = mapping(records[0].get("system"))
    least = min(turn.prompt_tokens for turn in turns)
    count = min(tokens(system.get("tokens")) or 0, least)
    shared = identifier(system.get("id"))
    prefix = SharedPrefix(shared, count) if count and shared else None
    messages, ends = _conversation(records, repairs)
    return Program(
        id, tuple(turns), prefix, recorded_start_s=start_s, messages=messages, prompt_messages=ends
    )


def _conversation(
    records: list[dict[str, Any]], repairs: Repairs
) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """The messages that the turns added, put together. None if a turn did not keep its own."""
    messages: list[Message] = []
    ends: list[int] = []
    for record in records:
        if not isinstance(record.get("messages"), list):
            return (), ()
        if messages and tokens(record.get("messages_repeated")) != len(messages):
            repairs.add("a prompt that rewrote its history: its own messages follow the others")
        messages += (_message(mapping(message)) for message in items(record["messages"]))
        ends.append(len(messages))
        messages.append(Message("assistant", text(record.get("answer"))))
    return tuple(messages), tuple(ends)


def _message(message: Mapping[str, Any]) -> Message:
    return Message(text(message.get("role")), text(message.get("content")))


def _turn(
    record: dict[str, Any], following: dict[str, Any], before: Turn | None, repairs: Repairs
) -> Turn:
    prompt_tokens = tokens(record.get("prompt_tokens")) or 1
    most = 0 if before is None else min(before.context_tokens, prompt_tokens - 1)
    return Turn(
        prompt_tokens=prompt_tokens,
        output_tokens=tokens(record.get("output_tokens")) or 1,
        kept_tokens=min(tokens(record.get("kept_tokens")) or 0, most),
        tools=tuple(name for name in items(record.get("tools")) if isinstance(name, str)),
        command=text(record.get("command")) or None,
        tool_gap_s=seconds(following.get("gap_s")) or 0.0,
        gap_provenance=_provenance(following.get("gap_provenance"), repairs),
    )


def _provenance(recorded: object, repairs: Repairs) -> Provenance:
    if not recorded:
        return Provenance.MEASURED
    if isinstance(recorded, str) and recorded in set(Provenance):
        return Provenance(recorded)
    repairs.add(f"a gap whose provenance is {brief(recorded)}: taken as inferred")
    return Provenance.INFERRED
