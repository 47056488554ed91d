"""Weka's agentic coding sessions (`kv-cache-tester/traces`), with sub-agents.

In: one session, `{id, block_size, hash_id_scope, requests[{t, type, in, out, hash_ids, stop,
api_time, think_time} | {type: "subagent", t, duration_ms, agent_id, requests}]}`. Out: the program
of the session and one for each sub-agent. Seconds and tokens: `t` is a request's start in the
session (or in its sub-agent), but a sub-agent's end; `think_time` is the pause before a request.
`docs/reference/trace-formats.md` says what is inferred and repaired, and why.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from servers.errors import TraceRejected
from traces.block_hashes import common_blocks, kept_tokens
from traces.lenient import (
    Repairs,
    brief,
    document_start,
    identifier,
    items,
    mapping,
    parse_json,
    seconds,
    text,
    tokens,
)
from traces.program import Fork, Program, Provenance, SharedPrefix, Turn

MAX_DEPTH = 20
"""Of sub-agents in sub-agents; deeper ones are left out."""
MAX_GROUPS_COMPARED = 100
"""A program is compared with so many groups of programs that begin with the same block."""
ROUNDING_S = 1.0
"""`t` is in whole seconds."""


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
class _Child:
    id: str
    start_s: float
    end_s: float
    entries: list[Any]


def read_session(document: dict[str, Any], name: str, repairs: Repairs) -> list[Program]:
    block = tokens(document.get("block_size"))
    if not block:
        repairs.add(f"block_size is {brief(document.get('block_size'))}: taken as 64 tokens")
        block = 64
    if text(document.get("hash_id_scope")) not in ("local", ""):
        repairs.add("hash ids with a scope beyond this file: used within this file only")
    session = _Session(block, repairs)
    session.add(identifier(document.get("id")) or name, items(document.get("requests")), None, 0)
    if not session.programs:
        raise TraceRejected("no request with prompt tokens")
    return session.with_prefixes()


def estimated_api_s(prompt_tokens: int, output_tokens: int) -> float:
    """Fitted by least squares to the 1,891 requests of 43 sessions that record their api_time."""
    return 1.27 + 0.0149 * output_tokens + 1.47e-5 * prompt_tokens


class _Session:
    def __init__(self, block: int, repairs: Repairs) -> None:
        self.block = block
        self.repairs = repairs
        self.programs: dict[str, Program] = {}
        self.starts: dict[str, list[Any]] = {}
        """The hash ids that all prompts of a program begin with."""

    def add(self, id: str, entries: list[Any], fork: Fork | None, depth: int) -> float | None:
        """Add a program and its sub-agents. Returns the end of its last response on its own clock,
        or None if it has no usable request."""
        if id in self.programs:
            self.repairs.add(f"a second sub-agent called {id}: numbered")
            while id in self.programs:
                id = f"{id}#{len(self.programs)}"
        requests, children = self._parse(entries, id)
        if not requests:
            self.repairs.add(f"{id} has no usable request: left out, with what it started")
            return None
        self.programs[id] = Program(id, (), fork=fork)
        joined_s: dict[int, float] = {}
        least_s = _least_from(requests)
        for child in children:
            child_fork = self._fork(id, requests, least_s, child)
            end_s = self._below(child, child_fork, depth)
            if end_s is not None and child_fork.joined_before_turn is not None:
                turn = child_fork.joined_before_turn
                joined_s[turn] = max(joined_s.get(turn, 0.0), child.start_s + end_s)
        turns = [self._turn(requests, i, joined_s.get(i + 1)) for i in range(len(requests))]
        self.programs[id] = replace(self.programs[id], turns=tuple(turns))
        self.starts[id] = _common_start(requests)
        return requests[-1].end_s

    def _below(self, child: _Child, fork: Fork, depth: int) -> float | None:
        if depth == MAX_DEPTH:
            self.repairs.add(f"sub-agents nested deeper than {MAX_DEPTH}: left out")
            return None
        return self.add(child.id, child.entries, fork, depth + 1)

    def _parse(self, entries: list[Any], id: str) -> tuple[list[_Request], list[_Child]]:
        requests: list[_Request] = []
        children: list[_Child] = []
        for place, entry in enumerate(entries):
            if mapping(entry).get("type") == "subagent":
                if child := self._child(entry, f"{id}/", place):
                    children.append(child)
            elif request := self._request(mapping(entry), requests):
                requests.append(request)
        if any(a.t > b.t for a, b in pairwise(requests)):
            self.repairs.add("requests out of order in time: sorted")
            requests.sort(key=lambda request: request.t)
        return requests, children

    def _child(self, entry: dict[str, Any], prefix: str, place: int) -> _Child | None:
        agent = identifier(entry.get("agent_id")) or f"agent_{place}"
        end_s, duration_ms = seconds(entry.get("t")), seconds(entry.get("duration_ms"))
        if end_s is None or duration_ms is None:
            self.repairs.add(f"sub-agent {agent} without t or duration_ms: left out")
            return None
        start_s = end_s - duration_ms / 1000
        return _Child(prefix + agent, start_s, end_s, items(entry.get("requests")))

    def _request(self, entry: dict[str, Any], before: list[_Request]) -> _Request | None:
        prompt, output = tokens(entry.get("in")), tokens(entry.get("out"))
        if not prompt:
            self.repairs.add(f"a request with {brief(entry.get('in'))} prompt tokens: left out")
            return None
        if not output:
            self.repairs.add(f"a request with {brief(entry.get('out'))} output tokens: taken as 1")
            output = 1
        t, think_s = seconds(entry.get("t")), seconds(entry.get("think_time"))
        if t is None:
            self.repairs.add(f"a request at t = {brief(entry.get('t'))}: put after the one before")
            t = before[-1].end_s + (think_s or 0.0) if before else 0.0
        api_s = seconds(entry.get("api_time"))
        if api_s is None:
            self.repairs.add("a request without api_time: estimated, its tool gap is inferred")
        hashes = entry.get("hash_ids")
        if not isinstance(hashes, list):
            self.repairs.add("a request without hash_ids: assumed to extend the one before it")
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

    def _fork(self, id: str, requests: list[_Request], least_s: list[float], child: _Child) -> Fork:
        # The last request that had ended. From the next one on, all end later.
        after = max(0, bisect_right(least_s, child.start_s + ROUNDING_S) - 1)
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
        now = requests[i]
        following = requests[i + 1] if i + 1 < len(requests) else None
        gap_s = 0.0
        if following is not None:
            gap_s = following.t - max(now.end_s, joined_s or 0.0)
            recorded_s = following.think_s
            if now.api_known and joined_s is None and recorded_s is not None:
                # Both are rounded to whole seconds; where they agree, one rounding is enough.
                gap_s = recorded_s if abs(recorded_s - gap_s) <= 2 * ROUNDING_S else gap_s
            if gap_s < -ROUNDING_S:
                self.repairs.add(
                    "a request sent before the previous response: its gap is taken as 0"
                )
        return Turn(
            prompt_tokens=now.prompt,
            output_tokens=now.output,
            kept_tokens=_kept_tokens(requests[i - 1], now, self.block) if i else 0,
            tools=self._tools(now, following),
            tool_gap_s=round(max(0.0, gap_s), 3),
            gap_provenance=Provenance.MEASURED if now.api_known else Provenance.INFERRED,
        )

    def _tools(self, now: _Request, following: _Request | None) -> tuple[str, ...]:
        if now.stop == "tool_use":
            return ("tool_use",)
        if following is None or now.stop == "end_turn":
            return ()
        if not now.stop:
            self.repairs.add("a request without stop reason, not the last: taken as a tool call")
            return ("tool_use",)
        return ("tool_use",) if following.answers_tool else ()

    def with_prefixes(self) -> list[Program]:
        """Give programs that begin alike the same prefix. In the order of the file, each joins the
        first group whose programs share at least as many tokens in total with it as without."""
        groups: list[tuple[list[Any], list[str]]] = []
        alike: dict[Any, list[int]] = {}
        """Indices of groups by their first hash id. Other groups have nothing in common."""
        for id, start in self.starts.items():
            first = start[0] if start and isinstance(start[0], int | float | str) else None
            places = alike.setdefault(first, [])
            for place in places[:MAX_GROUPS_COMPARED]:
                shared, members = groups[place]
                both = shared[: common_blocks(shared, start)]
                alone = len(shared) * len(members) if len(members) > 1 else 1
                if len(both) * (len(members) + 1) > alone:
                    groups[place] = (both, [*members, id])
                    break
            else:
                places.append(len(groups))
                groups.append((start, [id]))
        trace_id = next(iter(self.programs))
        for place, (shared, members) in enumerate(groups):
            if len(members) > 1:
                name = f"{trace_id}:{place}:{text(str(shared[-1]))[:40]}"
                prefix = SharedPrefix(name, len(shared) * self.block)
                for id in members:
                    self.programs[id] = replace(self.programs[id], prefix=prefix)
        return list(self.programs.values())


def _least_from(requests: list[_Request]) -> list[float]:
    """For each request, the earliest end of it and those after it. Ascending."""
    ends_s = (request.end_s for request in reversed(requests))
    return list(accumulate(ends_s, min))[::-1]


def _kept_tokens(before: _Request, now: _Request, block: int) -> int:
    shared = None
    if before.hashes is not None and now.hashes is not None:
        shared = common_blocks(before.hashes, now.hashes)
    return kept_tokens(before.prompt, before.output, now.prompt, shared, block)


def _common_start(requests: list[_Request]) -> list[Any]:
    start = requests[0].hashes or []
    for request in requests[1:]:
        start = start[: common_blocks(start, request.hashes or [])]
    return start
