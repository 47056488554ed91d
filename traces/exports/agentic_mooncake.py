"""Dynamo's agentic Mooncake traces, version 2: requests that start after other requests.

In: programs. Out: a header and a row per turn. A job is a play, a program a session. A turn depends
on the turn before it and on the last turns of the sub-agents that it waits for, each with the gap
as the delay; the first turn of a sub-agent depends on the turn that starts it. Times are in
milliseconds. Block ids are valid within the whole file ("local" in Dynamo's terms).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from servers.basics.json_object import JsonObject
from traces.exports.contents import BlockIds, add_block_losses
from traces.exports.timeline import ASSUMED_START, PAUSES, jobs, pauses, sub_agents
from traces.formats.agentic_mooncake import SCHEMA
from traces.lenient import Repairs
from traces.program import Program, Provenance

FOLDER = False
BLOCK_TOKENS = 64
MODEL = "unnamed"
"""The format requires the name of a model, which programs do not have."""
NO_TOOLS = "agentic-mooncake has no tool names"
NO_PROVENANCE = "agentic-mooncake does not say whether a gap was measured: it is read as unstated"


def write(programs: Sequence[Program], losses: Repairs) -> Iterator[bytes]:
    yield _line({
        "schema": SCHEMA, "version": 2, "block_size": BLOCK_TOKENS, "hash_id_scope": "local",
        "source": {"format": "turnstile", "digest": _digest(programs)},
    })  # fmt: skip
    blocks = BlockIds(BLOCK_TOKENS, partial=True)
    children = sub_agents(programs)
    for play, members in jobs(programs).items():
        if members[0].recorded_start_s is None:
            losses.add(ASSUMED_START)
        start_ms = _milliseconds(members[0].recorded_start_s or 0.0)
        lengths = {program.id: len(program.turns) for program in members}
        for program in members:
            losses.add(PAUSES.format("agentic-mooncake"), pauses(program))
            waits = _waits(children.get(program.id, ()), lengths)
            ids_of_turns = list(blocks.of(program))
            add_block_losses(program, ids_of_turns, BLOCK_TOKENS, losses)
            for number, (turn, ids) in enumerate(zip(program.turns, ids_of_turns, strict=True)):
                _add_losses(program, number, losses)
                yield _line({
                    "request_id": _request(program.id, number), "play_id": play,
                    "session_id": program.id, "model": MODEL,
                    "input_length": turn.prompt_tokens, "output_length": turn.output_tokens,
                    "hash_ids": ids, "not_before_ms": start_ms,
                    "dependencies": _dependencies(program, number, waits.get(number, ())),
                })  # fmt: skip


def _line(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value) + b"\n"


def _digest(programs: Sequence[Program]) -> str:
    """Return a hash of the programs, which the header requires."""
    digest = hashlib.sha256()
    for program in programs:
        lengths = [(turn.prompt_tokens, turn.output_tokens) for turn in program.turns]
        digest.update(orjson.dumps([program.id, lengths]))
    return digest.hexdigest()


def _milliseconds(seconds: float) -> float:
    """Return the time in milliseconds, as an integer if it is one."""
    time_ms = round(seconds * 1e3, 3)
    return int(time_ms) if time_ms.is_integer() else time_ms


def _request(program: str, number: int) -> str:
    return f"{program}:{number}"


def _waits(children: Sequence[Program], lengths: Mapping[str, int]) -> dict[int, list[str]]:
    """Return, by turn, the last requests of the sub-agents that it waits for."""
    found: dict[int, list[str]] = {}
    for child in children:
        if child.fork is not None and child.fork.joined_before_turn is not None:
            last = _request(child.id, lengths[child.id] - 1)
            found.setdefault(child.fork.joined_before_turn, []).append(last)
    return found


def _dependencies(program: Program, number: int, waits: Sequence[str]) -> list[JsonObject]:
    if number:
        delay_ms = _milliseconds(program.turns[number - 1].tool_gap_s)
        before = _dependency(_request(program.id, number - 1), delay_ms, "sequence")
        return [before, *(_dependency(request, delay_ms, "join") for request in waits)]
    if (fork := program.fork) is not None:
        start = _request(fork.program_id, fork.after_turn)
        return [_dependency(start, _milliseconds(fork.delay_s), "spawn")]
    return []


def _dependency(request: str, delay_ms: float, relation: str) -> JsonObject:
    return {"request_id": request, "trigger": "completion", "delay_ms": delay_ms,
            "relation": relation}  # fmt: skip


def _add_losses(program: Program, number: int, losses: Repairs) -> None:
    turn = program.turns[number]
    if turn.tools:
        losses.add(NO_TOOLS)
    if number + 1 < len(program.turns) and turn.gap_provenance != Provenance.UNSTATED:
        losses.add(NO_PROVENANCE)
    if number == 0 and program.fork and program.fork.delay_provenance != Provenance.UNSTATED:
        losses.add(NO_PROVENANCE)
