"""Dynamo's agentic Mooncake traces: requests that start after other requests.

In: version 2, a header `{schema: "dynamo.agentic_mooncake", version, block_size}` and a request per
line, `{request_id, play_id, session_id, input_length, output_length, hash_ids, not_before_ms,
dependencies[{request_id, trigger, delay_ms, relation: spawn | sequence | join}]}`. Or version 1,
without a header, with `{wait_for[request_id], delay, tool_wait_ms}` instead of dependencies. Out: a
program per session of a play, with forks and joins. Times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.formats.about import MEASURED, About
from traces.formats.mooncake import block_tokens, usable_hashes
from traces.formats.shared.calls import Call
from traces.formats.shared.rows import first_row, in_seconds, lengths, rows
from traces.formats.shared.timed_calls import UNNAMED_TOOL, TimedAgent, make_programs, share_hashes
from traces.lenient import MAX_GAP_S, Repairs, items, mapping, tokens
from traces.program import Fork, Program, Provenance

ABOUT = About(
    name="agentic-mooncake",
    order=9,
    holds="Dynamo's replay files",
    tool_times="unstated",
    repeats=MEASURED,
    sub_agents=True,
    accuracy="delays of spawns at dispatch are inferred; tools have no names",
    title="agentic Mooncake",
    rules=(
        "Versions 1 and 2. A session of a play is a program. The gap is `delay_ms` of the "
        "dependency (version 1: `delay` + `tool_wait_ms`). Spawns and joins are dependencies on "
        "other sessions"
    ),
)

SCHEMA = "dynamo.agentic_mooncake"


@dataclass(frozen=True, slots=True)
class Dependency:
    on: str
    """The request that this one starts after."""
    delay_s: float
    at_dispatch: bool = False
    """Whether it starts when that request is sent, instead of after its response."""


@dataclass(slots=True)
class RequestNode:
    play: str
    session: str
    """The id in the play, later in the file."""
    call: Call
    dependencies: list[Dependency]
    index: int = 0
    """Index in the session."""


def sniff(first_bytes: bytes) -> bool:
    row = first_row(first_bytes)
    return row.get("schema") == SCHEMA or (
        {"input_length", "output_length"} <= row.keys()
        and bool({"wait_for", "tool_wait_ms", "dependencies"} & row.keys())
    )


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    nodes: dict[str, RequestNode] = {}
    every: list[RequestNode] = []
    block = 0
    for number, row in enumerate(rows(data, repairs)):
        if row.get("schema") == SCHEMA:
            block = tokens(row.get("block_size")) or 0
        elif node := _node(row, f"{name}-{number}", repairs):
            every.append(node)
            nodes.setdefault(identifier(row.get("request_id")) or f"{name}-{number}", node)
    if not every:
        raise TraceRejected("no request with prompt tokens")
    sessions = _sessions(every)
    if not block:
        block = block_tokens((node.call for node in nodes.values()), repairs)
    joined: dict[tuple[str, str], int] = {}
    """The turn that waits, by its session and the session that it waits for."""
    for session in sessions.values():
        for before, node in pairwise(session):
            _wait(before, node, nodes, joined, repairs)
    agents = {
        id: TimedAgent(id, [node.call for node in session]) for id, session in sessions.items()
    }
    programs = [
        _with_fork(program, sessions, nodes, joined, repairs)
        for program in make_programs(agents, repairs)
    ]
    return share_hashes(programs, list(agents.values()), block)


def _sessions(nodes: Sequence[RequestNode]) -> dict[str, list[RequestNode]]:
    """Return the sessions by id, which includes the play's id if several plays use the same ids."""
    keys = {(node.play, node.session) for node in nodes}
    unique = len({session for _, session in keys}) == len(keys)
    sessions: dict[str, list[RequestNode]] = {}
    for node in nodes:
        if not unique and node.play:
            node.session = f"{node.play}/{node.session}"
        session = sessions.setdefault(node.session, [])
        node.index = len(session)
        session.append(node)
    return sessions


def _node(row: JsonObject, name: str, repairs: Repairs) -> RequestNode | None:
    found = lengths(row.get("input_length"), row.get("output_length"), repairs)
    if found is None:
        return None
    play, session = identifier(row.get("play_id")), identifier(row.get("session_id")) or name
    start_s = in_seconds(row.get("not_before_ms", row.get("timestamp")), 1e3)
    call = Call(*found, start_s, hashes=usable_hashes(row.get("hash_ids")) or ())
    return RequestNode(play, session, call, _dependencies(row))


def _dependencies(row: JsonObject) -> list[Dependency]:
    if "dependencies" in row:
        return [
            Dependency(
                identifier(each.get("request_id")),
                min(in_seconds(each.get("delay_ms"), 1e3) or 0.0, MAX_GAP_S),
                text(each.get("trigger")) == "dispatch",
            )
            for each in map(mapping, items(row.get("dependencies")))
        ]
    waits = [in_seconds(row.get(key), 1e3) or 0.0 for key in ("delay", "tool_wait_ms")]
    ids = row.get("wait_for")
    return [
        Dependency(identifier(each), min(sum(waits), MAX_GAP_S))
        for each in (ids if isinstance(ids, list) else [ids])
        if identifier(each)
    ]


def _wait(
    before: RequestNode,
    node: RequestNode,
    nodes: Mapping[str, RequestNode],
    joined: dict[tuple[str, str], int],
    repairs: Repairs,
) -> None:
    """Set the gap between two turns, and the other sessions that the second one waits for."""
    own_s: float | None = None
    joined_s: float | None = None
    for dependency in node.dependencies:
        other = nodes.get(dependency.on)
        if other is None:
            repairs.add("a dependency on a request that is not in the file: left out")
        elif other.session == node.session:
            own_s = max(dependency.delay_s, own_s or 0.0)
        elif joined.setdefault((node.session, other.session), node.index) == node.index:
            joined_s = max(dependency.delay_s, joined_s or 0.0)
    if own_s is None and joined_s is None:
        repairs.add("a request of a session that waits for no other: follows the previous one")
    gap_s = joined_s if joined_s is not None else own_s or 0.0
    before.call.gap, before.call.tools = (gap_s, Provenance.UNSTATED), UNNAMED_TOOL


def _with_fork(
    program: Program,
    sessions: Mapping[str, Sequence[RequestNode]],
    nodes: Mapping[str, RequestNode],
    joined: Mapping[tuple[str, str], int],
    repairs: Repairs,
) -> Program:
    """Add where a session starts, if it waits for another one."""
    for dependency in sessions[program.id][0].dependencies:
        parent = nodes.get(dependency.on)
        if parent is None or parent.session == program.id:
            continue
        after, delay_s, provenance = parent.index, dependency.delay_s, Provenance.UNSTATED
        waiting = joined.get((parent.session, program.id))
        if dependency.at_dispatch:
            provenance = Provenance.INFERRED
            if after == 0:
                repairs.add("a sub-agent that starts with its parent's first turn: starts after it")
            else:
                after -= 1
                gap_s, _ = sessions[parent.session][after].call.gap or (0.0, provenance)
                delay_s = min(delay_s + gap_s, MAX_GAP_S)
        if waiting is not None and waiting <= after:
            repairs.add("a parent that waits for a sub-agent before it starts: does not wait")
            waiting = None
        fork = Fork(parent.session, after, round(delay_s, 3), waiting, provenance)
        return replace(program, fork=fork, recorded_start_s=None)
    return program
