"""Harbor's Agent Trajectory Interchange Format, versions 1.0 to 1.7 (Terminal-Bench and others).

In: `{schema_version, session_id, agent, steps[{source, timestamp, message, tool_calls, observation,
metrics}], subagent_trajectories}`. Out: a program with a turn per agent step, and one for each
embedded trajectory of a sub-agent. Tool times are not recorded: the time between two steps covers
the tools and the next response, whose estimated generation is subtracted. Without usable
timestamps, gaps are unknown. Lengths are in tokens, times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from servers.tool_names import call_names, tool_names
from traces.assumptions import Assumptions, Gap
from traces.formats.about import BY_TEXT, DRAW, About
from traces.formats.shared.calls import Call, fill_usage, generation_s, unique_id
from traces.formats.shared.chat_messages import flat_text
from traces.formats.shared.moments import moment
from traces.formats.shared.transcript import Transcript
from traces.laws import Law
from traces.lenient import Repairs, document_start, items, mapping, parse_json, tokens
from traces.merge import agree_on_prefixes
from traces.program import Fork, Program, Provenance

ABOUT = About(
    name="atif",
    order=13,
    keys=(("schema_version", "agent", "steps"),),
    holds="Harbor's trajectories",
    tokens="recorded, else inferred",
    tool_times="inferred, else no",
    sub_agents=True,
    accuracy=f"tool times contain the model's; {BY_TEXT}",
    without=f"without timestamps {DRAW}",
)

MAX_DEPTH = 20
"""Maximum nesting of sub-agents; deeper ones are left out."""
SAID = ("message", "reasoning_content", "tool_calls")


def sniff(first_bytes: bytes) -> bool:
    return text(mapping(document_start(first_bytes)).get("schema_version")).startswith("ATIF")


def load_with(data: bytes, name: str, repairs: Repairs, assumptions: Assumptions) -> list[Program]:
    document = mapping(parse_json(data))
    reader = _TrajectoryReader(repairs, assumptions)
    reader.add(document, _id(document) or name, None, 0)
    if not reader.programs:
        raise TraceRejected("no agent step that is a model call")
    return list(agree_on_prefixes(list(reader.programs.values())))


def _id(document: JsonObject) -> str:
    id = identifier(document.get("session_id"))
    extra = mapping(mapping(document.get("agent")).get("extra"))
    number = tokens(extra.get("continuation_index"))
    return f"{id}/continued-{number}" if id and number else id


class _Steps(Transcript):
    """A trajectory, and the required data of the steps that are not calls."""

    def __init__(self) -> None:
        super().__init__()
        self.after_step: list[int] = []
        """Index of the last call up to each step."""
        self.asked_s: dict[int, float] = {}
        """Time of the last user or system message before each call."""

    @property
    def start_s(self) -> float | None:
        starts = (self.asked_s.get(0), self.calls[0].end_s)
        return next((start_s for start_s in starts if start_s is not None), None)


class _TrajectoryReader:
    def __init__(self, repairs: Repairs, assumptions: Assumptions) -> None:
        self.repairs, self.assumptions = repairs, assumptions
        self.programs: dict[str, Program] = {}
        self.ids: dict[str, int] = {}

    def add(self, document: JsonObject, wanted_id: str, fork: Fork | None, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.repairs.add(f"sub-agents nested deeper than {MAX_DEPTH}: left out")
            return
        steps = [mapping(step) for step in items(document.get("steps"))]
        read = self._steps(steps)
        if not read.calls:
            self.repairs.add("a trajectory without a model call: left out, with its sub-agents")
            return
        if document.get("continued_trajectory_ref"):
            self.repairs.add("continues in another file, which is a separate program")
        id = unique_id(identifier(wanted_id), self.ids)
        self.programs[id] = Program(id, (), fork=fork)
        forks = self._add_sub_agents(document, steps, read, id, depth)
        total = tokens(mapping(document.get("final_metrics")).get("total_prompt_tokens"))
        self.repairs.laws.total(Law.TOTALS, sum(call.prompt for call in read.calls), total)
        fill_usage(read.calls, self.repairs)
        joined = {fork.joined_before_turn for fork in forks}
        gaps = [self._gap(read, i, i + 1 in joined) for i in range(len(read.calls))]
        tools = [call.tools for call in read.calls]
        complete = self.assumptions.complete_gaps(id, tools, gaps, self.repairs)
        program = read.program(id, complete, self.repairs, read.start_s)
        self.programs[id] = replace(program, fork=fork)

    def _steps(self, steps: Sequence[JsonObject]) -> _Steps:
        read, context = _Steps(), 0
        counter = self.assumptions.tokens
        has_usage = any(tokens(mapping(s.get("metrics")).get("prompt_tokens")) for s in steps)
        for step in steps:
            said = flat_text([step.get(name) for name in SAID])
            at_s = moment(step.get("timestamp"))
            is_agent, call = step.get("source") == "agent", None
            if step.get("is_copied_context"):
                self.repairs.add("a step copied from an earlier trajectory: only in prompts")
            elif is_agent and step.get("llm_call_count") != 0:
                call = self._call(step, said, 0 if has_usage else max(context, 1))
                call.end_s = at_s
            elif at_s is not None:
                read.asked_s[len(read.calls)] = at_s
            if step.get("source") == "system" and not read.calls:
                read.system = f"{read.system}\n{said}" if read.system else said
            read.say("assistant" if is_agent else text(step.get("source")), said, call)
            if observed := flat_text(mapping(step.get("observation")).get("results")):
                read.say("user", observed)
            read.after_step.append(len(read.calls) - 1)
            if not has_usage:
                context += counter.length([said, observed])
        if not has_usage and read.calls:
            self.repairs.add(f"a trajectory without token counts: {counter.basis}")
        return read

    def _call(self, step: JsonObject, said: str, prompt: int) -> Call:
        """`prompt`: its length, if no call of the file has usage."""
        metrics, counter = mapping(step.get("metrics")), self.assumptions.tokens
        if (tokens(step.get("llm_call_count")) or 1) > 1:
            self.repairs.add("a step of several model calls: counted as one")
        output = tokens(metrics.get("completion_tokens")) or 0
        if output:
            counter.observe(len(said), output)
        elif prompt:
            output = counter.length([said])
        tools = tuple(name for call in items(step.get("tool_calls")) for name in _names(call))
        if not tools and mapping(step.get("observation")).get("results"):
            tools = tool_names(text(step.get("message"))) or ("tool",)
        prompt = tokens(metrics.get("prompt_tokens")) or prompt
        cached = tokens(metrics.get("cached_tokens"))
        return Call(prompt, output, cached=cached, tools=tools)

    def _add_sub_agents(
        self,
        document: JsonObject,
        steps: Sequence[JsonObject],
        read: _Steps,
        id: str,
        depth: int,
    ) -> list[Fork]:
        """Add the programs of embedded trajectories. Return their forks."""
        places: dict[str, int] = {}
        """The call after which each trajectory starts, by the trajectory's ids."""
        for step, after in zip(steps, read.after_step, strict=True):
            for result in items(mapping(step.get("observation")).get("results")):
                for ref in map(mapping, items(mapping(result).get("subagent_trajectory_ref"))):
                    for key in ("trajectory_id", "session_id"):
                        places.setdefault(text(ref.get(key)), max(after, 0))
                    if ref.get("trajectory_path"):
                        self.repairs.add("a sub-agent in another file, which is a separate program")
        forks: list[Fork] = []
        for child in map(mapping, items(document.get("subagent_trajectories"))):
            keys = (text(child.get(key)) for key in ("trajectory_id", "session_id"))
            place = next((places[key] for key in keys if key and key in places), None)
            if place is None:
                self.repairs.add("a sub-agent that no step refers to: after the first turn")
            after = place or 0
            joined = after + 1 if after + 1 < len(read.calls) else None
            name = identifier(mapping(child.get("agent")).get("name"))[:60] or "sub-agent"
            forks.append(Fork(id, after, 0.0, joined, Provenance.INFERRED))
            self.add(child, f"{id}/{name}", forks[-1], depth + 1)
        return forks

    def _gap(self, read: _Steps, i: int, is_joined: bool) -> Gap | None:
        """Return the gap after a call; None if it is unknown."""
        if i + 1 == len(read.calls):
            return None
        if is_joined:
            self.repairs.add("a turn that waits for a sub-agent: no further gap, inferred")
            return 0.0, Provenance.INFERRED
        ended_s, following = read.calls[i].end_s, read.calls[i + 1]
        asked_s = read.asked_s.get(i + 1)
        if ended_s is None:
            return None
        if asked_s is not None and asked_s > ended_s:
            return asked_s - ended_s, Provenance.MEASURED
        if following.end_s is None or following.end_s <= ended_s:
            return None  # equal times are of the file's creation
        self.repairs.add(
            "a tool time from timestamps of steps, which include the next response: its estimated "
            "generation subtracted, inferred"
        )
        gap_s = following.end_s - ended_s - generation_s(following.output)
        return max(0.0, gap_s), Provenance.INFERRED


def _names(call: object) -> tuple[str, ...]:
    """Return the name of a called tool, or the commands that a shell runs."""
    name = text(mapping(call).get("function_name"))
    arguments = mapping(mapping(call).get("arguments"))
    command = text(arguments.get("command")) or text(arguments.get("keystrokes"))
    return (call_names(name, command) if command else (name,)) if name else ()
