"""Builds the programs of an OpenHands conversation: the agent, and its condenser's calls.

In: utterances in order, and the usage of each response. Out: the agent's program, and for each call
of the condenser a sub-agent, since its prompt is separate and the agent waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from traces.formats.openhands_events import Role, Utterance
from traces.formats.shared.calls import (
    TrajectoryCall,
    fill_usage,
    first_count,
    make_turn,
    system_prefix,
)
from traces.lenient import Repairs, mapping, tokens
from traces.program import Fork, Message, Program, Provenance, Turn


@dataclass(slots=True)
class Usages:
    """Token counts and latencies by response id."""

    tokens: dict[str, JsonObject] = field(default_factory=dict)
    latencies_s: dict[str, float] = field(default_factory=dict)


class ConversationBuilder:
    """Builds the programs from the utterances of a conversation, added in order."""

    def __init__(self, usages: Usages, repairs: Repairs) -> None:
        self.usages, self.repairs = usages, repairs
        self.calls: list[TrajectoryCall] = []
        self.messages: list[Message] = []
        self.prompt_ends: list[int] = []
        """Number of messages before each call."""
        self.condensed: list[tuple[int, TrajectoryCall]] = []
        """Condenser calls, each with the index of the turn before it."""
        self.system = ""
        self.characters = 0
        self.openings: list[int] = []
        """Number of characters in the messages before each call."""
        self.request_s: float | None = None
        """Time of the first user message."""
        self._response: str | None = None
        self._totals: list[int | None] = [0, 0]
        """Accumulated prompt and output tokens at the latest response."""
        self.rewritten = False
        """Whether the condenser replaced a part of the conversation."""

    def add(self, utterance: Utterance) -> None:
        if utterance.role is Role.CONDENSER:
            self._condense(utterance)
            return
        if utterance.role is Role.MODEL:
            self._model(utterance)
        elif self.calls:
            self.calls[-1].answered(utterance.at_s)
        if utterance.role is Role.SYSTEM:
            self.system = self.system or utterance.content
        if utterance.role is Role.USER and self.request_s is None:
            self.request_s = utterance.at_s
        role = "user" if utterance.role is Role.TOOL else utterance.role.value
        self.messages.append(Message(role, utterance.content))
        self.characters += len(utterance.content) + len(utterance.other_prompt_text)

    def _model(self, utterance: Utterance) -> None:
        if utterance.response_id is None or utterance.response_id != self._response:
            self.prompt_ends.append(len(self.messages))
            self.openings.append(self.characters)
            self.calls.append(self._call(utterance))
        self._response = utterance.response_id
        call = self.calls[-1]
        call.tools += utterance.tools
        call.commands += [utterance.command] if utterance.command else []
        call.characters += len(utterance.content) + len(utterance.other_prompt_text)

    def _call(self, utterance: Utterance) -> TrajectoryCall:
        difference = self._usage_since_last(utterance)
        usage = utterance.usage or self.usages.tokens.get(utterance.response_id or "") or difference
        details = mapping(usage.get("completion_tokens_details"))
        reasoning = tokens(usage.get("reasoning_tokens") or details.get("reasoning_tokens"))
        latency_s = self.usages.latencies_s.get(utterance.response_id or "")
        ended_s = utterance.at_s
        return TrajectoryCall(
            prompt=first_count(usage, "prompt_tokens"),
            output=first_count(usage, "completion_tokens"),
            reasoning=reasoning or 0,
            started_s=None if ended_s is None or latency_s is None else ended_s - latency_s,
            ended_s=ended_s,
        )

    def _usage_since_last(self, utterance: Utterance) -> JsonObject:
        """Return the difference between the accumulated usages of this and the last response."""
        names = ("prompt_tokens", "completion_tokens")
        totals = [tokens(utterance.accumulated_usage.get(name)) for name in names]
        before, self._totals = self._totals, totals
        pairs = zip(names, totals, before, strict=True)
        return {n: now - then for n, now, then in pairs if now is not None and then is not None}

    def _condense(self, utterance: Utterance) -> None:
        self.rewritten = True
        call = self._call(utterance)
        if self.calls and call.prompt and call.output:
            self.condensed.append((len(self.calls) - 1, call))
        else:
            self.repairs.add("a condensation without token counts: left out")

    def programs(self, id: str) -> list[Program]:
        if not self.calls:
            raise TraceRejected("no response of a model in its events")
        self._drop_calls_before_first_count()
        calls, opening = self.calls, self.openings[0]
        fill_usage(calls, opening, self.repairs)
        gaps = [self._gap(i) for i in range(len(calls))]
        forks = [self._fork(id, k, gaps) for k in range(len(self.condensed))]
        for i, call in self.condensed:
            gaps[i] = self._gap_after_condenser(call, i + 1)
        turns = tuple(make_turn(calls, i, gap, self.repairs) for i, gap in enumerate(gaps))
        shortest_prompt = min(turn.prompt_tokens for turn in turns)
        starts = (calls[0].started_s, self.request_s, calls[0].ended_s)
        program = Program(
            id,
            turns,
            system_prefix(self.system, opening, shortest_prompt),
            recorded_start_s=next((start for start in starts if start is not None), None),
            messages=() if self.rewritten else tuple(self.messages),
            prompt_messages=() if self.rewritten else tuple(self.prompt_ends),
        )
        return [program, *forks]

    def _drop_calls_before_first_count(self) -> None:
        """Drop calls before the first one with a prompt length, as their lengths are unknown."""
        first = next((i for i, call in enumerate(self.calls) if call.prompt), 0)
        for _ in range(first):
            self.repairs.add("a response before the first one with prompt tokens: left out")
        self.calls, self.prompt_ends = self.calls[first:], self.prompt_ends[first:]
        self.openings = self.openings[first:]
        self.condensed = [(i - first, call) for i, call in self.condensed if i >= first]

    def _gap(self, i: int) -> tuple[float, Provenance]:
        call = self.calls[i]
        if i + 1 == len(self.calls):
            return 0.0, Provenance.MEASURED
        if (gap_s := call.measured_gap_s(self.repairs)) is not None:
            return gap_s, Provenance.MEASURED
        if call.tools:
            self.repairs.add("a response or observation without a time: tool gap set to 0")
        return 0.0, Provenance.INFERRED

    def _fork(self, id: str, k: int, gaps: list[tuple[float, Provenance]]) -> Program:
        """Return the program of call `k` of the condenser."""
        after, call = self.condensed[k]
        ended_s, (delay_s, provenance) = self.calls[after].ended_s, gaps[after]
        if call.started_s is not None and ended_s is not None:
            delay_s, provenance = max(0.0, call.started_s - ended_s), Provenance.MEASURED
        joined = after + 1 if after + 1 < len(self.calls) else None
        fork = Fork(id, after, round(delay_s, 3), joined, provenance)
        turn = Turn(prompt_tokens=call.prompt or 1, output_tokens=call.output or 1)
        return Program(f"{id}/condenser-{k + 1}", (turn,), fork=fork)

    def _gap_after_condenser(
        self, condensed: TrajectoryCall, following: int
    ) -> tuple[float, Provenance]:
        """Return the seconds from the condenser's end to the start of the next response."""
        started_s = self.calls[following].started_s if following < len(self.calls) else None
        if started_s is None or condensed.ended_s is None:
            return 0.0, Provenance.INFERRED
        return max(0.0, started_s - condensed.ended_s), Provenance.MEASURED
