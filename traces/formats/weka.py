"""Weka's agentic coding sessions (`kv-cache-tester/traces`), with sub-agents.

In: one session, `{id, block_size, hash_id_scope, requests[{t, type, in, out, hash_ids, stop,
api_time, think_time} | {type: "subagent", t, duration_ms, agent_id, requests}]}`. Out: the program
of the session and one for each sub-agent, in seconds and tokens. `t` is the start of a request,
relative to its session or sub-agent, but the end of a sub-agent; `think_time` is the pause before a
request. `docs/reference/trace-formats.md` describes what is inferred and repaired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import brief, identifier, text
from traces.block_hashes import common_blocks, kept_tokens
from traces.formats.about import CALL_END, MEASURED, About
from traces.formats.shared.calls import Call
from traces.formats.shared.rows import lengths
from traces.formats.shared.timed_calls import (
    UNNAMED_TOOL,
    TimedAgent,
    estimated_api_s,
    make_programs,
)
from traces.laws import Law
from traces.lenient import Repairs, document_start, items, mapping, parse_json, seconds, tokens
from traces.program import Program, Provenance, SharedPrefix

ABOUT = About(
    name="weka",
    order=6,
    keys=(("id", "block_size", "requests.in", "requests.out"),),
    holds="coding sessions with block hashes",
    tool_times="measured, else inferred",
    repeats=MEASURED,
    starts=False,
    sub_agents=True,
    accuracy=f"without `api_time` {CALL_END}; tools have no names",
)

MARKS = {"block_size", "hash_id_scope"}
"""Fields of sessions, besides `requests`."""
MAX_DEPTH = 20
"""Maximum nesting of sub-agents; deeper ones are left out."""
MAX_GROUPS_COMPARED = 100
"""A program is compared with at most this many groups with the same first block."""
ROUNDING_S = 1.0
"""The resolution of `t`."""


def sniff(first_bytes: bytes) -> bool:
    document = mapping(document_start(first_bytes))
    first = mapping(next(iter(items(document.get("requests"))), None))
    is_marked = bool(MARKS & document.keys()) or {"in", "out"} <= first.keys()
    return "requests" in document and is_marked


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    return read_session(mapping(parse_json(data)), name, repairs)


def read_session(document: JsonObject, name: str, repairs: Repairs) -> list[Program]:
    block = tokens(document.get("block_size"))
    if not block:
        repairs.add(f"block_size is {brief(document.get('block_size'))}: set to 64 tokens")
        block = 64
    if text(document.get("hash_id_scope")) not in ("local", ""):
        repairs.add("hash ids with a scope beyond this file: used only within this file")
    reader = _SessionReader(block, repairs)
    session = TimedAgent(identifier(document.get("id")) or name, [])
    reader.add(session, items(document.get("requests")), 0.0, 0)
    if not reader.agents:
        raise TraceRejected("no request with prompt tokens")
    read = sum(call.prompt for agent in reader.agents.values() for call in agent.calls)
    totals = mapping(mapping(document.get("totals")).get("combined_tokens"))
    repairs.laws.total(Law.TOTALS, read, tokens(totals.get("input")))
    programs = make_programs(reader.agents, repairs, ROUNDING_S)
    return _with_prefixes(programs, reader.starts, block)


@dataclass(slots=True)
class _Request:
    """What only Weka's calls have."""

    call: Call
    stop: str
    answers_tool: bool
    think_s: float | None
    hashes: list[Any] | None


class _SessionReader:
    def __init__(self, block: int, repairs: Repairs) -> None:
        self.block = block
        self.repairs = repairs
        self.agents: dict[str, TimedAgent] = {}
        self.starts: dict[str, list[Any]] = {}
        """Leading hash ids that all prompts of an agent share."""

    def add(self, agent: TimedAgent, entries: list[Any], zero_s: float, depth: int) -> None:
        """Add an agent and its sub-agents. `zero_s`: the time at which `t` is 0."""
        if depth > MAX_DEPTH:
            self.repairs.add(f"sub-agents nested deeper than {MAX_DEPTH}: left out")
            return
        if agent.id in self.agents:
            self.repairs.add(f"a second sub-agent with id {agent.id}: numbered")
            while agent.id in self.agents:
                agent.id = f"{agent.id}#{len(self.agents)}"
        requests: list[_Request] = []
        children: list[tuple[TimedAgent, list[Any]]] = []
        for index, entry in enumerate(map(mapping, entries)):
            if entry.get("type") == "subagent":
                if child := self._sub_agent(entry, agent.id, zero_s, index):
                    children.append((child, items(entry.get("requests"))))
            elif request := self._request(entry, zero_s, requests):
                requests.append(request)
        if not requests:
            self.repairs.add(f"{agent.id} has no usable request: left out, with its sub-agents")
            return
        if any(_start_s(a) > _start_s(b) for a, b in pairwise(requests)):
            self.repairs.add("requests not in order of time: sorted")
            requests.sort(key=_start_s)
        for before, request in pairwise(requests):
            self._follow(before, request)
        agent.calls = [request.call for request in requests]
        if requests[-1].stop == "tool_use":
            agent.calls[-1].tools = UNNAMED_TOOL
        self.agents[agent.id] = agent
        for child, inner in children:
            self.add(child, inner, child.start_s or 0.0, depth + 1)
        self.starts[agent.id] = _common_start([request.hashes or [] for request in requests])

    def _sub_agent(
        self, entry: JsonObject, parent: str, zero_s: float, index: int
    ) -> TimedAgent | None:
        agent = identifier(entry.get("agent_id")) or f"agent_{index}"
        end_s, duration_ms = seconds(entry.get("t")), seconds(entry.get("duration_ms"))
        if end_s is None or duration_ms is None:
            self.repairs.add(f"sub-agent {agent} without t or duration_ms: left out")
            return None
        end_s += zero_s
        return TimedAgent(f"{parent}/{agent}", [], parent, None, end_s - duration_ms / 1000, end_s)

    def _request(self, entry: JsonObject, zero_s: float, before: list[_Request]) -> _Request | None:
        found = lengths(entry.get("in"), entry.get("out"), self.repairs)
        if found is None:
            return None
        t, think_s = seconds(entry.get("t")), seconds(entry.get("think_time"))
        start_s = zero_s + (t or 0.0)
        if t is None:
            self.repairs.add(
                f"a request at t = {brief(entry.get('t'))}: put after the previous one"
            )
            if before:
                start_s = (before[-1].call.end_s or 0.0) + (think_s or 0.0)
        api_s = seconds(entry.get("api_time"))
        if api_s is None:
            self.repairs.add("a request without api_time: estimated, its tool gap is inferred")
        hashes = entry.get("hash_ids")
        if not isinstance(hashes, list):
            self.repairs.add("a request without hash_ids: assumed to extend the previous one")
        end_s = start_s + (estimated_api_s(*found) if api_s is None else api_s)
        provenance = Provenance.INFERRED if api_s is None else Provenance.MEASURED
        return _Request(
            Call(*found, start_s, end_s, api_s is not None, gap_provenance=provenance),
            text(entry.get("stop")),
            "tool_result" in items(entry.get("input_types")),
            think_s,
            hashes[: found[0] // self.block] if isinstance(hashes, list) else None,
        )

    def _follow(self, before: _Request, request: _Request) -> None:
        """Set what a request keeps of the one before, and the tools and the gap between them."""
        common = None
        if before.hashes is not None and request.hashes is not None:
            common = common_blocks(before.hashes, request.hashes)
        last, call = before.call, request.call
        call.kept = kept_tokens(last.prompt, last.output, call.prompt, common, self.block)
        if not before.stop:
            self.repairs.add("a request without stop reason, not the last: assumed a tool call")
        answers_tool = request.answers_tool and before.stop != "end_turn"
        if before.stop in ("", "tool_use") or answers_tool:
            last.tools = UNNAMED_TOOL
        gap_s = _start_s(request) - (last.end_s or 0.0)
        # If both agree within rounding, prefer think_time, which is rounded only once.
        think_s = request.think_s
        if last.end_known and think_s is not None and abs(think_s - gap_s) <= 2 * ROUNDING_S:
            last.gap = think_s, Provenance.MEASURED


def _start_s(request: _Request) -> float:
    return request.call.start_s or 0.0


def _with_prefixes(
    programs: Sequence[Program], starts: Mapping[str, list[Any]], block: int
) -> list[Program]:
    """Give programs with the same beginning a common prefix. In file order, a program joins the
    first group that shares at least as many tokens in total with it as without it."""
    groups: list[tuple[list[Any], list[str]]] = []
    """Shared hash ids, and program ids."""
    by_first: dict[Any, list[int]] = {}
    """Indices of groups by their first hash id; groups with different ones share nothing."""
    for id, start in starts.items():
        first = start[0] if start and isinstance(start[0], int | float | str) else None
        candidates = by_first.setdefault(first, [])
        for index in candidates[:MAX_GROUPS_COMPARED]:
            shared, members = groups[index]
            common = shared[: common_blocks(shared, start)]
            blocks_without = len(shared) * len(members) if len(members) > 1 else 1
            if len(common) * (len(members) + 1) > blocks_without:
                groups[index] = (common, [*members, id])
                break
        else:
            candidates.append(len(groups))
            groups.append((start, [id]))
    prefixes: dict[str, SharedPrefix] = {}
    for index, (shared, members) in enumerate(groups):
        if len(members) > 1:
            name = f"{programs[0].id}:{index}:{text(str(shared[-1]))[:40]}"
            prefixes |= dict.fromkeys(members, SharedPrefix(name, len(shared) * block))
    return [
        replace(program, prefix=prefixes.get(program.id), recorded_start_s=None)
        for program in programs
    ]


def _common_start(prompts: Sequence[list[Any]]) -> list[Any]:
    start = prompts[0]
    for prompt in prompts[1:]:
        start = start[: common_blocks(start, prompt)]
    return start
