"""OpenHands trajectories: the legacy event list, and conversations of its SDK.

In: a list of events (`trajectory.json`); an object that has them as `events`, `trajectory` or
`history`, with `base_state` or `metrics` for the tokens; `rows` of such objects (an evaluation's
`output.jsonl`); or the folder that the SDK persists, `base_state.json` with `events/event-*.json`.
Out: a program per conversation, one turn per response of the model; a summary that the condenser
had made is a sub-agent. Seconds and tokens. Rules and repairs stand in `docs/traces.md`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from traces.calls import Call, fill_usage, first_count, make_turn, system_prefix
from traces.lenient import Rejected, Repairs, items, mapping, read_bytes, seconds, text, tokens
from traces.openhands_events import Role, Said, is_event, said
from traces.program import Fork, Message, Program, Provenance, Turn

STATE = "base_state.json"
EVENTS = ("events", "trajectory", "history")
LOOK_AT = 20
"""So many of the first elements of a list tell whether it is one of events."""


def matches(document: object) -> bool:
    rows = mapping(document).get("rows")
    return any(map(_of_events, items(rows))) or _of_events(document)


def _of_events(document: object) -> bool:
    return any(map(is_event, _events(document)[:LOOK_AT]))


def _events(document: object) -> list[Any]:
    """Old evaluations have pairs of an action and its observation."""
    named = (items(mapping(document).get(name)) for name in EVENTS)
    found = document if isinstance(document, list) else next(filter(None, named), [])
    return [e for event in found for e in (event if isinstance(event, list) else [event])]


def matches_line(line: bytes) -> bool:
    """The first line of a JSONL file: an event, or a row of an evaluation."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return is_event(document) or _of_events(document)


def read_lines(data: bytes, repairs: Repairs) -> dict[str, Any]:
    lines = [
        found for line in data.splitlines() if line.strip() and (found := _json(line, repairs))
    ]
    return {"events": lines} if is_event(lines[0]) else {"rows": lines}


def _json(line: bytes, repairs: Repairs) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        repairs.add("a torn line: left out")
        return None


def is_part(path: Path) -> bool:
    """A file that is read with the `base_state.json` of its conversation."""
    return path.parent.name == "events" and (path.parent.parent / STATE).is_file()


def read_conversation(state: Path) -> bytes:
    """Of the SDK's folder, as one document."""
    events = [read_bytes(path) for path in sorted(state.parent.glob("events/*.json"))]
    return b'{"base_state":%b,"events":[%b]}' % (read_bytes(state), b",".join(events))


def load(document: Any, name: str, repairs: Repairs) -> list[Program]:
    if not mapping(document).get("rows"):
        return _conversation(document, name, repairs)
    programs: list[Program] = []
    refusals: list[str] = []
    for number, row in enumerate(document["rows"], 1):
        try:
            found = _conversation(row, f"{name}-{number}", repairs)
        except Rejected as refusal:
            refusals.append(str(refusal))
            repairs.add(f"a row left out: {refusal}")
            continue
        taken = {program.id for program in programs}
        if any(program.id in taken for program in found):
            found = _numbered(found, number)
        programs += found
    if not programs:
        raise Rejected(next(iter(refusals), "no rows"))
    return programs


def _numbered(programs: list[Program], number: int) -> list[Program]:
    """Attempts at one task."""
    return [
        replace(
            program,
            id=f"{program.id}@{number}",
            fork=program.fork
            and replace(program.fork, program_id=f"{program.fork.program_id}@{number}"),
        )
        for program in programs
    ]


def _conversation(document: Any, name: str, repairs: Repairs) -> list[Program]:
    events = _events(document)
    for event in events:
        if not isinstance(event, dict):
            repairs.add("an event that is no object: left out")
    story = _Story(_Usages(document, events), repairs)
    for one in said(events):
        story.add(one)
    return story.programs(_id(document) or name)


def _id(document: Any) -> str:
    state = mapping(mapping(document).get("base_state"))
    named = text(mapping(state.get("tags")).get("program")) or text(state.get("id"))
    return text(mapping(document).get("instance_id")) or named


class _Usages:
    """Tokens and latencies by the id of the response, wherever the document has them."""

    def __init__(self, document: Any, events: list[Any]) -> None:
        self.tokens: dict[str, Mapping[str, Any]] = {}
        self.latencies: dict[str, float] = {}
        for metrics in _metrics(document, events):
            for usage in map(mapping, items(metrics.get("token_usages"))):
                self.tokens[text(usage.get("response_id"))] = usage
            for latency in map(mapping, items(metrics.get("response_latencies"))):
                if (found := seconds(latency.get("latency"))) is not None:
                    self.latencies[text(latency.get("response_id"))] = found
        self.tokens.pop("", None)


def _metrics(document: Any, events: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    stats = [mapping(mapping(document).get("base_state")).get("stats")]
    yield mapping(mapping(document).get("metrics"))
    for event in map(mapping, events):
        yield mapping(event.get("llm_metrics"))
        if event.get("kind") == "ConversationStateUpdateEvent":
            value = mapping(event.get("value"))
            stats.append(value if event.get("key") == "stats" else value.get("stats"))
    for stat in map(mapping, stats):
        for name in ("usage_to_metrics", "service_to_metrics"):
            yield from map(mapping, mapping(stat.get(name)).values())


class _Story:
    """A conversation, event by event."""

    def __init__(self, usages: _Usages, repairs: Repairs) -> None:
        self.usages, self.repairs = usages, repairs
        self.calls: list[Call] = []
        self.messages: list[Message] = []
        self.before: list[int] = []
        self.condensed: list[tuple[int, Call]] = []
        """Condensers' calls, each with the number of turns before it."""
        self.system = ""
        self.characters = 0
        self.openings: list[int] = []
        """Characters said before each call."""
        self.asked_s: float | None = None
        self._response: str | None = None
        self._so_far: list[int | None] = [0, 0]
        self.rewritten = False

    def add(self, one: Said) -> None:
        if one.role is Role.CONDENSER:
            self._condense(one)
            return
        if one.role is Role.MODEL:
            self._model(one)
        elif self.calls:
            self.calls[-1].answered(one.at_s)
        if one.role is Role.SYSTEM:
            self.system = self.system or one.content
        if one.role is Role.USER and self.asked_s is None:
            self.asked_s = one.at_s
        role = "user" if one.role is Role.TOOL else one.role.value
        self.messages.append(Message(role, one.content))
        self.characters += len(one.content)

    def _model(self, one: Said) -> None:
        if one.response_id is None or one.response_id != self._response:
            self.before.append(len(self.messages))
            self.openings.append(self.characters)
            self.calls.append(self._call(one))
        self._response = one.response_id
        call = self.calls[-1]
        call.tools += one.tools
        call.commands += [one.command] if one.command else []
        call.characters += len(one.content)

    def _call(self, one: Said) -> Call:
        spent = self._spent(one)
        usage = one.usage or self.usages.tokens.get(one.response_id or "") or spent
        details = mapping(usage.get("completion_tokens_details"))
        reasoning = tokens(usage.get("reasoning_tokens") or details.get("reasoning_tokens"))
        latency_s = self.usages.latencies.get(one.response_id or "")
        return Call(
            prompt=first_count(usage, "prompt_tokens"),
            output=first_count(usage, "completion_tokens"),
            reasoning=reasoning or 0,
            started_s=None if one.at_s is None or latency_s is None else one.at_s - latency_s,
            ended_s=one.at_s,
        )

    def _spent(self, one: Said) -> Mapping[str, Any]:
        """What a response took is what the sum has grown by since the one before."""
        names = ("prompt_tokens", "completion_tokens")
        before, self._so_far = self._so_far, [tokens(one.tokens_so_far.get(n)) for n in names]
        pairs = zip(names, self._so_far, before, strict=True)
        return {n: now - then for n, now, then in pairs if now is not None and then is not None}

    def _condense(self, one: Said) -> None:
        self.rewritten = True
        call = self._call(one)
        if self.calls and call.prompt and call.output:
            self.condensed.append((len(self.calls) - 1, call))
        else:
            self.repairs.add("a condensation whose own tokens are unknown: left out")

    def programs(self, id: str) -> list[Program]:
        if not self.calls:
            raise Rejected("no response of a model in its events")
        self._forget_the_uncounted()
        calls, opening = self.calls, self.openings[0]
        fill_usage(calls, opening, self.repairs)
        gaps = [self._gap(i) for i in range(len(calls))]
        forks = [self._fork(id, k, gaps) for k in range(len(self.condensed))]
        for i, call in self.condensed:
            gaps[i] = self._after(call, i + 1)
        turns = tuple(make_turn(calls, i, gap, self.repairs) for i, gap in enumerate(gaps))
        least = min(turn.prompt_tokens for turn in turns)
        starts = (calls[0].started_s, self.asked_s, calls[0].ended_s)
        program = Program(
            id,
            turns,
            system_prefix(self.system, opening, least),
            recorded_start_s=next((start for start in starts if start is not None), None),
            messages=() if self.rewritten else tuple(self.messages),
            prompt_messages=() if self.rewritten else tuple(self.before),
        )
        return [program, *forks]

    def _forget_the_uncounted(self) -> None:
        """Prompts before the first that was counted: nobody knows how long they were."""
        first = next((i for i, call in enumerate(self.calls) if call.prompt), 0)
        for _ in range(first):
            self.repairs.add("a response before the first whose prompt was counted: left out")
        self.calls, self.before = self.calls[first:], self.before[first:]
        self.openings = self.openings[first:]
        self.condensed = [(i - first, call) for i, call in self.condensed if i >= first]

    def _gap(self, i: int) -> tuple[float, Provenance]:
        call = self.calls[i]
        if i + 1 == len(self.calls):
            return 0.0, Provenance.MEASURED
        if (gap_s := call.measured_gap_s(self.repairs)) is not None:
            return gap_s, Provenance.MEASURED
        if call.tools:
            self.repairs.add("no time of a response or its observation: tool gap taken as 0")
        return 0.0, Provenance.INFERRED

    def _fork(self, id: str, k: int, gaps: list[tuple[float, Provenance]]) -> Program:
        """The condenser reads a prompt of its own while the agent waits."""
        after, call = self.condensed[k]
        ended_s, (delay_s, provenance) = self.calls[after].ended_s, gaps[after]
        if call.started_s is not None and ended_s is not None:
            delay_s, provenance = max(0.0, call.started_s - ended_s), Provenance.MEASURED
        joined = after + 1 if after + 1 < len(self.calls) else None
        fork = Fork(id, after, round(delay_s, 3), joined, provenance)
        turn = Turn(prompt_tokens=call.prompt or 1, output_tokens=call.output or 1)
        return Program(f"{id}/condenser-{k + 1}", (turn,), fork=fork)

    def _after(self, condensed: Call, following: int) -> tuple[float, Provenance]:
        """From the condenser's end to the next response's start."""
        started_s = self.calls[following].started_s if following < len(self.calls) else None
        if started_s is None or condensed.ended_s is None:
            return 0.0, Provenance.INFERRED
        return max(0.0, started_s - condensed.ended_s), Provenance.MEASURED
