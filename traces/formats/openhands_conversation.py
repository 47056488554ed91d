"""A conversation of OpenHands as programs: the agent's turns, and its condenser's calls.

In: what was said, in order, and the tokens of each response. Out: the agent's program; a summary
that the condenser had made is a sub-agent, since its prompt is another and the agent waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servers.errors import TraceRejected
from traces.formats.calls import Call, fill_usage, first_count, make_turn, system_prefix
from traces.formats.openhands_events import Role, Said
from traces.lenient import Repairs, mapping, tokens
from traces.program import Fork, Message, Program, Provenance, Turn


@dataclass(slots=True)
class Usages:
    """By the id of the response."""

    tokens: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    latencies_s: dict[str, float] = field(default_factory=dict)


class ConversationBuilder:
    """A conversation, event by event."""

    def __init__(self, usages: Usages, repairs: Repairs) -> None:
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
        self.characters += len(one.content) + len(one.besides)

    def _model(self, one: Said) -> None:
        if one.response_id is None or one.response_id != self._response:
            self.before.append(len(self.messages))
            self.openings.append(self.characters)
            self.calls.append(self._call(one))
        self._response = one.response_id
        call = self.calls[-1]
        call.tools += one.tools
        call.commands += [one.command] if one.command else []
        call.characters += len(one.content) + len(one.besides)

    def _call(self, one: Said) -> Call:
        spent = self._spent(one)
        usage = one.usage or self.usages.tokens.get(one.response_id or "") or spent
        details = mapping(usage.get("completion_tokens_details"))
        reasoning = tokens(usage.get("reasoning_tokens") or details.get("reasoning_tokens"))
        latency_s = self.usages.latencies_s.get(one.response_id or "")
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
            raise TraceRejected("no response of a model in its events")
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
