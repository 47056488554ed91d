"""Weka's agentic coding sessions (`kv-cache-tester/traces`), with sub-agents.

In: one session, `{id, block_size, hash_id_scope, requests[{t, type, in, out, hash_ids, stop,
api_time, think_time} | {type: "subagent", t, duration_ms, agent_id, requests}]}`. Out: the program
of the session and one for each sub-agent, in seconds and tokens. `t` is the start of a request,
relative to its session or sub-agent, but the end of a sub-agent; `think_time` is the pause before a
request. `docs/reference/trace-formats.md` describes what is inferred and repaired.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import brief, identifier, text
from traces.block_hashes import common_blocks, kept_tokens
from traces.formats.about import CALL_END, MEASURED, About
from traces.formats.shared.timed_calls import estimated_api_s
from traces.lenient import Repairs, document_start, items, mapping, parse_json, seconds, tokens
from traces.program import Fork, Program, Provenance, SharedPrefix, Turn

ABOUT = About(
    name="weka",
    order=6,
    keys=(("id", "block_size", "requests.in", "requests.out"),),
    holds="coding sessions with block hashes",
    tokens="recorded",
    tool_times="measured, else inferred",
    repeats=MEASURED,
    starts=False,
    sub_agents=True,
    accuracy=f"without `api_time` {CALL_END}; tools have no names",
)

MAX_DEPTH = 20
"""Maximum nesting of sub-agents; deeper ones are left out."""
MAX_GROUPS_COMPARED = 100
"""A program is compared with at most this many groups with the same first block."""
ROUNDING_S = 1.0
"""The resolution of `t`."""


def sniff(first_bytes: bytes) -> bool:
    return "requests" in mapping(document_start(first_bytes))


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    return read_session(mapping(parse_json(data)), name, repairs)


@dataclass(slots=True)
class _Request:
    t: float
    prompt: int
    output: int
    hashes: list[Any] | None
    stop: str
    answers_tool: bool
    api_s: float
    api_known: bool
    think_s: float | None

    @property
    def end_s(self) -> float:
        return self.t + self.api_s


@dataclass(slots=True)
class _SubAgent:
    id: str
    start_s: float
    end_s: float
    entries: list[Any]


def read_session(document: JsonObject, name: str, repairs: Repairs) -> list[Program]:
    block = tokens(document.get("block_size"))
    if not block:
        repairs.add(f"block_size is {brief(document.get('block_size'))}: set to 64 tokens")
        block = 64
    if text(document.get("hash_id_scope")) not in ("local", ""):
        repairs.add("hash ids with a scope beyond this file: used only within this file")
    session = _SessionPrograms(block, repairs)
    session.add(identifier(document.get("id")) or name, items(document.get("requests")), None, 0)
    if not session.programs:
        raise TraceRejected("no request with prompt tokens")
    return session.with_prefixes()


class _SessionPrograms:
    def __init__(self, block: int, repairs: Repairs) -> None:
        self.block = block
        self.repairs = repairs
        self.programs: dict[str, Program] = {}
        self.starts: dict[str, list[Any]] = {}
        """Leading hash ids that all prompts of a program share."""

    def add(self, id: str, entries: list[Any], fork: Fork | None, depth: int) -> float | None:
        """Add a program and its sub-agents. Return the end of its last response, relative to its
        start, or None if it has no usable request."""
        if depth > MAX_DEPTH:
            self.repairs.add(f"sub-agents nested deeper than {MAX_DEPTH}: left out")
            return None
        if id in self.programs:
            self.repairs.add(f"a second sub-agent with id {id}: numbered")
            while id in self.programs:
                id = f"{id}#{len(self.programs)}"
        requests, children = self._parse(entries, id)
        if not requests:
            self.repairs.add(f"{id} has no usable request: left out, with its sub-agents")
            return None
        self.programs[id] = Program(id, (), fork=fork)
        joined_s: dict[int, float] = {}
        earliest_ends_s = _earliest_ends_s(requests)
        for child in children:
            child_fork = self._fork(id, requests, earliest_ends_s, child)
            end_s = self.add(child.id, child.entries, child_fork, depth + 1)
            if end_s is not None and child_fork.joined_before_turn is not None:
                turn = child_fork.joined_before_turn
                joined_s[turn] = max(joined_s.get(turn, 0.0), child.start_s + end_s)
        turns = [self._turn(requests, i, joined_s.get(i + 1)) for i in range(len(requests))]
        self.programs[id] = replace(self.programs[id], turns=tuple(turns))
        self.starts[id] = _common_start(requests)
        return requests[-1].end_s

    def _parse(self, entries: list[Any], id: str) -> tuple[list[_Request], list[_SubAgent]]:
        requests: list[_Request] = []
        children: list[_SubAgent] = []
        for index, entry in enumerate(entries):
            if mapping(entry).get("type") == "subagent":
                if child := self._sub_agent(entry, f"{id}/", index):
                    children.append(child)
            elif request := self._request(mapping(entry), requests):
                requests.append(request)
        if any(a.t > b.t for a, b in pairwise(requests)):
            self.repairs.add("requests not in order of time: sorted")
            requests.sort(key=lambda request: request.t)
        return requests, children

    def _sub_agent(self, entry: JsonObject, prefix: str, index: int) -> _SubAgent | None:
        agent = identifier(entry.get("agent_id")) or f"agent_{index}"
        end_s, duration_ms = seconds(entry.get("t")), seconds(entry.get("duration_ms"))
        if end_s is None or duration_ms is None:
            self.repairs.add(f"sub-agent {agent} without t or duration_ms: left out")
            return None
        start_s = end_s - duration_ms / 1000
        return _SubAgent(prefix + agent, start_s, end_s, items(entry.get("requests")))

    def _request(self, entry: JsonObject, before: list[_Request]) -> _Request | None:
        prompt, output = tokens(entry.get("in")), tokens(entry.get("out"))
        if not prompt:
            self.repairs.add(f"a request with {brief(entry.get('in'))} prompt tokens: left out")
            return None
        if not output:
            self.repairs.add(f"a request with {brief(entry.get('out'))} output tokens: set to 1")
            output = 1
        t, think_s = seconds(entry.get("t")), seconds(entry.get("think_time"))
        if t is None:
            self.repairs.add(
                f"a request at t = {brief(entry.get('t'))}: put after the previous one"
            )
            t = before[-1].end_s + (think_s or 0.0) if before else 0.0
        api_s = seconds(entry.get("api_time"))
        if api_s is None:
            self.repairs.add("a request without api_time: estimated, its tool gap is inferred")
        hashes = entry.get("hash_ids")
        if not isinstance(hashes, list):
            self.repairs.add("a request without hash_ids: assumed to extend the previous one")
        return _Request(
            t=t,
            prompt=prompt,
            output=output,
            hashes=hashes[: prompt // self.block] if isinstance(hashes, list) else None,
            stop=text(entry.get("stop")),
            answers_tool="tool_result" in items(entry.get("input_types")),
            api_s=estimated_api_s(prompt, output) if api_s is None else api_s,
            api_known=api_s is not None,
            think_s=think_s,
        )

    def _fork(
        self, id: str, requests: list[_Request], earliest_ends_s: list[float], child: _SubAgent
    ) -> Fork:
        # The last request that ended before the sub-agent started; all later ones end after that.
        after = max(0, bisect_right(earliest_ends_s, child.start_s + ROUNDING_S) - 1)
        joined = None
        if after + 1 < len(requests):
            if child.end_s <= requests[after + 1].t + ROUNDING_S:
                joined = after + 1
            else:
                self.repairs.add(
                    f"{child.id} runs in parallel with its parent, which does not wait for it"
                )
        known = requests[after].api_known
        delay_s = round(max(0.0, child.start_s - requests[after].end_s), 3)
        return Fork(
            id, after, delay_s, joined, Provenance.MEASURED if known else Provenance.INFERRED
        )

    def _turn(self, requests: list[_Request], i: int, joined_s: float | None) -> Turn:
        request = requests[i]
        following = requests[i + 1] if i + 1 < len(requests) else None
        gap_s = 0.0
        if following is not None:
            gap_s = following.t - max(request.end_s, joined_s or 0.0)
            recorded_s = following.think_s
            if request.api_known and joined_s is None and recorded_s is not None:
                # If both agree within rounding, prefer think_time, which is rounded only once.
                gap_s = recorded_s if abs(recorded_s - gap_s) <= 2 * ROUNDING_S else gap_s
            if gap_s < -ROUNDING_S:
                self.repairs.add("a request sent before the previous response: gap set to 0")
        return Turn(
            prompt_tokens=request.prompt,
            output_tokens=request.output,
            kept_tokens=_kept_tokens(requests[i - 1], request, self.block) if i else 0,
            tools=self._tools(request, following),
            tool_gap_s=round(max(0.0, gap_s), 3),
            gap_provenance=Provenance.MEASURED if request.api_known else Provenance.INFERRED,
        )

    def _tools(self, request: _Request, following: _Request | None) -> tuple[str, ...]:
        if request.stop == "tool_use":
            return ("tool_use",)
        if following is None or request.stop == "end_turn":
            return ()
        if not request.stop:
            self.repairs.add("a request without stop reason, not the last: assumed a tool call")
            return ("tool_use",)
        return ("tool_use",) if following.answers_tool else ()

    def with_prefixes(self) -> list[Program]:
        """Give programs with the same beginning a common prefix. In file order, a program joins the
        first group that shares at least as many tokens in total with it as without it."""
        groups: list[tuple[list[Any], list[str]]] = []
        """Shared hash ids, and program ids."""
        by_first: dict[Any, list[int]] = {}
        """Indices of groups by their first hash id; groups with different ones share nothing."""
        for id, start in self.starts.items():
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
        trace_id = next(iter(self.programs))
        for index, (shared, members) in enumerate(groups):
            if len(members) > 1:
                name = f"{trace_id}:{index}:{text(str(shared[-1]))[:40]}"
                prefix = SharedPrefix(name, len(shared) * self.block)
                for id in members:
                    self.programs[id] = replace(self.programs[id], prefix=prefix)
        return list(self.programs.values())


def _earliest_ends_s(requests: list[_Request]) -> list[float]:
    """Return for each request the earliest end of it and all later ones; these ascend."""
    ends_s = (request.end_s for request in reversed(requests))
    return list(accumulate(ends_s, min))[::-1]


def _kept_tokens(before: _Request, request: _Request, block: int) -> int:
    shared = None
    if before.hashes is not None and request.hashes is not None:
        shared = common_blocks(before.hashes, request.hashes)
    return kept_tokens(before.prompt, before.output, request.prompt, shared, block)


def _common_start(requests: list[_Request]) -> list[Any]:
    start = requests[0].hashes or []
    for request in requests[1:]:
        start = start[: common_blocks(start, request.hashes or [])]
    return start
