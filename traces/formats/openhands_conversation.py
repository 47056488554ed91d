"""Builds the programs of an OpenHands conversation: the agent, and its condenser's calls.

In: utterances in order, and the usage of each response. Out: the agent's program, and for each call
of the condenser a sub-agent, since its prompt is separate and the agent waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from traces.assumptions import Gap
from traces.formats.openhands_events import Role, Utterance
from traces.formats.shared.calls import Call, fill_usage, first_count
from traces.formats.shared.transcript import Transcript
from traces.lenient import Repairs, mapping, tokens
from traces.program import Fork, Program, Provenance, Turn


@dataclass(slots=True)
class Usages:
    """Token counts and latencies by response id."""

    tokens: dict[str, JsonObject] = field(default_factory=dict)
    latencies_s: dict[str, float] = field(default_factory=dict)


class ConversationBuilder:
    """Builds the programs from the utterances of a conversation, added in order."""

    def __init__(self, usages: Usages, repairs: Repairs) -> None:
        self.usages, self.repairs = usages, repairs
        self.read = Transcript()
        self.condensed: list[tuple[int, Call]] = []
        """Condenser calls, each with the index of the turn before it."""
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
        calls, call = self.read.calls, None
        if utterance.role is not Role.MODEL:
            if calls:
                calls[-1].answered(utterance.at_s)
        elif utterance.response_id is None or utterance.response_id != self._response:
            call = self._call(utterance)
        else:
            calls[-1].characters += len(utterance.content) + len(utterance.other_prompt_text)
        if utterance.role is Role.SYSTEM:
            self.read.system = self.read.system or utterance.content
        if utterance.role is Role.USER and self.request_s is None:
            self.request_s = utterance.at_s
        self.read.say(
            utterance.role.value, utterance.content, call, len(utterance.other_prompt_text)
        )
        if utterance.role is Role.MODEL:
            self._response = utterance.response_id
            calls[-1].tools += utterance.tools
            calls[-1].commands += (utterance.command,) if utterance.command else ()

    def _call(self, utterance: Utterance) -> Call:
        difference = self._usage_since_last(utterance)
        usage = utterance.usage or self.usages.tokens.get(utterance.response_id or "") or difference
        details = mapping(usage.get("completion_tokens_details"))
        reasoning = tokens(usage.get("reasoning_tokens") or details.get("reasoning_tokens"))
        latency_s = self.usages.latencies_s.get(utterance.response_id or "")
        end_s = utterance.at_s
        return Call(
            first_count(usage, "prompt_tokens") or 0,
            first_count(usage, "completion_tokens") or 0,
            None if end_s is None or latency_s is None else end_s - latency_s,
            end_s,
            drops_output=bool(reasoning),
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
        if self.read.calls and call.prompt and call.output:
            self.condensed.append((len(self.read.calls) - 1, call))
        else:
            self.repairs.add("a condensation without token counts: left out")

    def programs(self, id: str) -> list[Program]:
        if not self.read.calls:
            raise TraceRejected("no response of a model in its events")
        self._drop_calls_before_first_count()
        calls = self.read.calls
        fill_usage(calls, self.repairs)
        gaps = [self._gap(i) for i in range(len(calls))]
        forks = [self._fork(id, k, gaps) for k in range(len(self.condensed))]
        for i, call in self.condensed:
            gaps[i] = self._gap_after_condenser(call, i + 1)
        starts = (calls[0].start_s, self.request_s, calls[0].end_s)
        start_s = next((start for start in starts if start is not None), None)
        program = self.read.program(id, gaps, self.repairs, start_s)
        if self.rewritten:
            program = replace(program, messages=(), prompt_messages=())
        return [program, *forks]

    def _drop_calls_before_first_count(self) -> None:
        """Drop calls before the first one with a prompt length, as their lengths are unknown."""
        first = next((i for i, call in enumerate(self.read.calls) if call.prompt), 0)
        self.repairs.add("a response before the first one with prompt tokens: left out", first)
        self.read.calls = self.read.calls[first:]
        self.condensed = [(i - first, call) for i, call in self.condensed if i >= first]

    def _gap(self, i: int) -> Gap:
        call = self.read.calls[i]
        if i + 1 == len(self.read.calls):
            return 0.0, Provenance.MEASURED
        if (measured := call.measured_gap(self.repairs)) is not None:
            return measured
        if call.tools:
            self.repairs.add("a response or observation without a time: tool gap set to 0")
        return 0.0, Provenance.INFERRED

    def _fork(self, id: str, k: int, gaps: list[Gap]) -> Program:
        """Return the program of call `k` of the condenser."""
        after, call = self.condensed[k]
        ended_s, (delay_s, provenance) = self.read.calls[after].end_s, gaps[after]
        if call.start_s is not None and ended_s is not None:
            delay_s, provenance = max(0.0, call.start_s - ended_s), Provenance.MEASURED
        joined = after + 1 if after + 1 < len(self.read.calls) else None
        fork = Fork(id, after, round(delay_s, 3), joined, provenance)
        return Program(f"{id}/condenser-{k + 1}", (Turn(call.prompt, call.output),), fork=fork)

    def _gap_after_condenser(self, condensed: Call, following: int) -> Gap:
        """Return the seconds from the condenser's end to the start of the next response."""
        started_s = self.read.calls[following].start_s if following < len(self.read.calls) else None
        if started_s is None or condensed.end_s is None:
            return 0.0, Provenance.INFERRED
        return max(0.0, started_s - condensed.end_s), Provenance.MEASURED
