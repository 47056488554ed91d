"""OpenTelemetry spans in OTLP JSON, with the attributes of the GenAI conventions.

In: programs. Out: a line `{resourceSpans}` per job, with spans of agents, model calls and tools. A
job is a conversation; a pause without a tool ends a trace, and the next turn begins another one.
Attributes that begin with `turnstile.` record what the conventions lack: kept tokens, and whether
times were measured. Jobs without a date begin in the year 2000.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from servers.basics.json_object import JsonObject
from traces.exports.timeline import PLACED_BY_TIME, StartAndEnd, jobs, timeline
from traces.formats.otel_attributes import GAP_PROVENANCE, KEPT_TOKENS, START_PROVENANCE
from traces.lenient import Repairs
from traces.program import Program

FOLDER = False
EPOCH_S = 946_684_800
"""2000-01-01T00:00:00Z."""
LAST_S = 0.001
"""A tool that takes no time starts this long before the end of its answer, so that it belongs to
that turn."""
NO_HASHES = "otel has no hashes of blocks: what programs share is lost"
TOOLS = "otel has a span per tool: each takes the whole gap, since programs record only their sum"
BY_TIME = PLACED_BY_TIME.format("otel")
PAUSE = "otel readers take a pause of a sub-agent for a tool"


def write(programs: Sequence[Program], losses: Repairs) -> Iterator[bytes]:
    times = timeline(programs, losses)
    for members in jobs(programs).values():
        traces: dict[tuple[str, int], str] = {}
        spans: list[JsonObject] = []
        for program in members:
            _add_losses(program, losses)
            spans += _Agent(program, members[0].id, times[program.id], traces).spans()
        scope = {"scope": {"name": "turnstile"}, "spans": spans}
        resource = {"attributes": _attributes({"service.name": "turnstile"})}
        line = {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}
        yield orjson.dumps(line) + b"\n"


class _Agent:
    """The spans of one program."""

    def __init__(
        self,
        program: Program,
        conversation: str,
        times: Sequence[StartAndEnd],
        traces: dict[tuple[str, int], str],
    ) -> None:
        """`traces` has the trace of each turn of the job's earlier programs and is extended."""
        self._program = program
        self._conversation = conversation
        self._times = times
        self._traces = traces
        fork = program.fork
        self._agent = program.id.removeprefix(f"{fork.program_id}/") if fork else "agent"

    def spans(self) -> Iterator[JsonObject]:
        for first, end in self._parts():
            trace, parent = self._place(first)
            agent = _id(self._program.id, "agent", first)
            for turn in range(first, end):
                self._traces[self._program.id, turn] = f"{trace}{agent}"
            yield _span(
                trace, agent, parent, f"invoke_agent {self._agent}",
                self._times[first].start_s, self._times[end - 1].end_s,
                {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": self._agent,
                 "gen_ai.conversation.id": self._conversation},
            )  # fmt: skip
            for turn in range(first, end):
                yield self._call(trace, agent, turn)
                yield from self._tools(trace, agent, turn)

    def _parts(self) -> list[tuple[int, int]]:
        """Return the turns of each trace. A sub-agent is in a single trace, its parent's."""
        size = len(self._program.turns)
        if self._program.fork is not None:
            return [(0, size)]
        pauses = [i + 1 for i, turn in enumerate(self._program.turns[:-1]) if not turn.tools]
        return list(zip([0, *pauses], [*pauses, size], strict=True))

    def _place(self, first: int) -> tuple[str, str]:
        """Return the trace of a part, and the span of the agent that starts it."""
        if (fork := self._program.fork) is None:
            return _id(self._program.id, "trace", first, 32), ""
        place = self._traces[fork.program_id, fork.after_turn]
        return place[:32], place[32:]

    def _call(self, trace: str, agent: str, number: int) -> JsonObject:
        turn, time = self._program.turns[number], self._times[number]
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.conversation.id": self._conversation,
            "gen_ai.agent.name": self._agent,
            "gen_ai.usage.input_tokens": turn.prompt_tokens,
            "gen_ai.usage.output_tokens": turn.output_tokens,
            KEPT_TOKENS: turn.kept_tokens,
            GAP_PROVENANCE: turn.gap_provenance.value,
        }
        if number == 0 and self._program.fork is not None:
            attributes[START_PROVENANCE] = self._program.fork.delay_provenance.value
        id = _id(self._program.id, "chat", number)
        return _span(trace, id, agent, "chat", time.start_s, time.end_s, attributes)

    def _tools(self, trace: str, agent: str, number: int) -> Iterator[JsonObject]:
        end_s = self._times[number].end_s
        following = self._times[number + 1 : number + 2]
        until_s = following[0].start_s if following else end_s
        start_s = end_s if until_s > end_s else end_s - LAST_S
        for index, name in enumerate(self._program.turns[number].tools):
            yield _span(
                trace, _id(self._program.id, f"tool {index}", number), agent,
                f"execute_tool {name}", start_s, max(start_s, until_s),
                {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name},
            )  # fmt: skip


def _span(
    trace: str,
    id: str,
    parent: str,
    name: str,
    start_s: float,
    end_s: float,
    attributes: Mapping[str, Any],
) -> JsonObject:
    return {
        "traceId": trace,
        "spanId": id,
        "parentSpanId": parent,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": _nanoseconds(start_s),
        "endTimeUnixNano": _nanoseconds(end_s),
        "attributes": _attributes(attributes),
    }


def _nanoseconds(seconds: float) -> str:
    return str(EPOCH_S * 10**9 + round(seconds * 1e6) * 1000)


def _attributes(values: Mapping[str, Any]) -> list[JsonObject]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int)
         else {"stringValue": value}}
        for key, value in values.items()
    ]  # fmt: skip


def _id(program: str, kind: str, number: int, digits: int = 16) -> str:
    return hashlib.sha256(f"{kind} {number} {program}".encode()).hexdigest()[:digits]


def _add_losses(program: Program, losses: Repairs) -> None:
    losses.add(NO_HASHES, bool(program.prefix_ids))
    losses.add(BY_TIME, program.fork is not None)
    losses.add(TOOLS, sum(bool(turn.tools) for turn in program.turns))
    if program.fork is not None:
        losses.add(PAUSE, sum(not turn.tools for turn in program.turns[:-1]))
