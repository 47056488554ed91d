"""mini-swe-agent trajectories, `mini-swe-agent-1` and `mini-swe-agent-1.1`.

In: `{info, messages, trajectory_format, instance_id}`. Out: one program, one turn per LLM call:
an assistant message, a Responses API object, or (v2) a format-error message that carries the
response that it refused. Seconds and tokens. Tool gaps are measured where both the answer and its
observation have timestamps (v2), else inferred from the starts of generations (v1); the rule, and
how reasoning tokens count, stands in `docs/traces.md`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servers.tool_names import command_names, tool_names
from traces.lenient import Rejected, Repairs, epoch, items, mapping, seconds, shown, text, tokens
from traces.program import Message, Program, Provenance, SharedPrefix, Turn

GENERATION_START_S = 2.4
GENERATION_TOKENS_PER_S = 85.0
"""A generation of n tokens takes GENERATION_START_S + n / GENERATION_TOKENS_PER_S: least absolute
deviations over the 1,973 turns of 80 v1 trajectories (gemini-3-pro) that only read files."""
DEFAULT_COMMAND_TIMEOUT_S = 60.0
"""mini-swe-agent's own limit on a command in SWE-bench runs."""
COUNTING_ERROR = 0.05
"""Providers of one model count tokens differently, and a router changes them between turns; the
agent only ever appends messages. In the 80 trajectories prompts shrink by 2.2% at most."""
CHARACTERS_PER_TOKEN = 3.3
"""Median of 80 trajectories; only for turns whose usage is missing."""

_BLOCK = re.compile(r"```(?:bash|mswea_bash_command)\s*\n(.*?)\n```", re.DOTALL)


def matches(document: object) -> bool:
    return "messages" in mapping(document)


@dataclass(slots=True)
class _Call:
    prompt: int | None
    output: int | None
    reasoning: int
    started_s: float | None
    """Start of generation, Unix seconds."""
    ended_s: float | None
    answered_s: float | None = None
    """When the last observation of its tools was there."""
    commands: list[str] = field(default_factory=list)
    tools: tuple[str, ...] = ()
    refused: bool = False
    """A format error: the answer is not in the next prompt, and no tool ran."""
    characters: int = 0


def load(document: dict[str, Any], name: str, repairs: Repairs) -> list[Program]:
    messages = items(document.get("messages"))
    calls, opening = _calls(messages, repairs)
    if not calls:
        raise Rejected("no LLM call in its messages")
    _fill_usage(calls, opening, repairs)
    timeout_s = _command_timeout_s(document)
    turns = tuple(_turn(calls, i, timeout_s, repairs) for i in range(len(calls)))
    first = calls[0]
    started_s = first.started_s if first.started_s is not None else first.ended_s
    id = text(document.get("instance_id")) or name
    prefix = _prefix(messages, opening, min(turn.prompt_tokens for turn in turns))
    said, before = _conversation(messages)
    return [
        Program(
            id, turns, prefix, recorded_start_s=started_s, messages=said, prompt_messages=before
        )
    ]


def _conversation(messages: list[Any]) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """What was said, and how much of it before each call. A tool's output is a user's message, and
    a Responses object its text, so that any chat template takes them."""
    said: list[Message] = []
    before: list[int] = []
    for message in messages:
        if not isinstance(message, dict):
            continue
        if _is_call(message):
            before.append(len(said))
        role = message.get("role")
        speaks = "assistant" if message.get("object") == "response" else text(role)
        known = speaks if speaks in ("system", "assistant") else "user"
        said.append(Message(known, _content(message) or text(message.get("output"))))
    return tuple(said), tuple(before)


def _calls(messages: list[Any], repairs: Repairs) -> tuple[list[_Call], int]:
    """The LLM calls, and the characters of the messages before the first."""
    calls: list[_Call] = []
    opening = characters = 0
    for message in messages:
        if not isinstance(message, dict):
            repairs.add("a message that is no object: left out")
            continue
        length = _length(message)
        if _is_call(message):
            if not calls:
                opening = characters
            call = _call(message)
            call.characters = length
            calls.append(call)
        elif calls and (moment := _timestamp(message)) is not None:
            calls[-1].answered_s = max(moment, calls[-1].answered_s or moment)
        characters += length
    return calls, opening


def _is_call(message: Mapping[str, Any]) -> bool:
    refused = isinstance(_usage(message), dict)
    return message.get("role") == "assistant" or message.get("object") == "response" or refused


def _usage(message: Mapping[str, Any]) -> Any:
    response = mapping(mapping(message.get("extra")).get("response"))
    return response.get("usage") if response else message.get("usage")


def _timestamp(message: Mapping[str, Any]) -> float | None:
    extra = mapping(message.get("extra"))
    return epoch(extra.get("timestamp")) or epoch(message.get("timestamp"))


def _call(message: Mapping[str, Any]) -> _Call:
    extra = mapping(message.get("extra"))
    response = mapping(extra.get("response")) or message
    usage = mapping(_usage(message))
    details = mapping(usage.get("completion_tokens_details") or usage.get("output_tokens_details"))
    started = epoch(response.get("created")) or epoch(response.get("created_at"))
    refused = message.get("role") == "user"
    call = _Call(
        prompt=_first_count(usage, "prompt_tokens", "input_tokens"),
        output=_first_count(usage, "completion_tokens", "output_tokens"),
        reasoning=tokens(details.get("reasoning_tokens")) or 0,
        started_s=started,
        ended_s=None if refused else _timestamp(message),
        refused=refused,
    )
    if refused:
        return call
    if "actions" in extra:
        commands = (mapping(action).get("command") for action in items(extra["actions"]))
        call.commands = [text(command) for command in commands if isinstance(command, str)]
        call.tools = tuple(n for command in call.commands for n in command_names(command))
    else:
        blocks = bash_blocks(_content(message))
        # Two blocks or none are a format error: the agent asks again and runs nothing.
        call.commands = blocks if len(blocks) == 1 else []
        call.tools = tuple(n for command in call.commands for n in command_names(command))
        if not call.commands and message.get("tool_calls"):
            call.tools = tool_names(items(message.get("tool_calls")))
    return call


def bash_blocks(said: str) -> list[str]:
    """The commands of a text; the agent runs the only one."""
    return [str(block) for block in _BLOCK.findall(said)]


def _first_count(usage: Mapping[str, Any], *names: str) -> int | None:
    return next((n for name in names if (n := tokens(usage.get(name))) is not None), None)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(text(mapping(part).get("text")) for part in content)
    return text(content)


def _length(message: Mapping[str, Any]) -> int:
    return len(_content(message)) + len(text(message.get("output")))


def _fill_usage(calls: list[_Call], opening: int, repairs: Repairs) -> None:
    """A turn without usage is estimated; without any usage there is no program."""
    if not any(call.prompt for call in calls):
        raise Rejected("no token usage in any response: prompt lengths are unknown")
    context = 0
    for call in calls:
        if not call.output:
            repairs.add(
                f"a response with {shown(call.output)} output tokens: estimated by its length"
            )
            call.output = max(1, round(call.characters / CHARACTERS_PER_TOKEN))
        if not call.prompt:
            repairs.add(
                f"a response with {shown(call.prompt)} prompt tokens: set to the context before"
            )
            call.prompt = max(context, round(opening / CHARACTERS_PER_TOKEN), 1) + 1
        context = call.prompt + call.output


def _command_timeout_s(document: Mapping[str, Any]) -> float:
    config = mapping(mapping(document.get("info")).get("config"))
    said = seconds(mapping(config.get("environment")).get("timeout"))
    return said or DEFAULT_COMMAND_TIMEOUT_S


def _turn(calls: list[_Call], i: int, timeout_s: float, repairs: Repairs) -> Turn:
    call = calls[i]
    gap_s, provenance = 0.0, Provenance.MEASURED
    if i + 1 < len(calls):
        gap_s, provenance = _gap(call, calls[i + 1], timeout_s, repairs)
    return Turn(
        prompt_tokens=call.prompt or 1,
        output_tokens=call.output or 1,
        kept_tokens=_kept(calls, i, repairs) if i else 0,
        tools=call.tools,
        command="\n".join(call.commands) or None,
        tool_gap_s=round(gap_s, 3),
        gap_provenance=provenance,
    )


def _gap(
    call: _Call, following: _Call, timeout_s: float, repairs: Repairs
) -> tuple[float, Provenance]:
    if call.ended_s is not None and call.answered_s is not None:
        if call.answered_s < call.ended_s:
            repairs.add("an observation before its answer: its tool gap taken as 0")
        return max(0.0, call.answered_s - call.ended_s), Provenance.MEASURED
    if not call.tools and not call.commands:
        return 0.0, Provenance.INFERRED
    if call.started_s is None or following.started_s is None:
        repairs.add("no time of a turn or its next: tool gap taken as 0")
        return 0.0, Provenance.INFERRED
    generation_s = GENERATION_START_S + (call.output or 0) / GENERATION_TOKENS_PER_S
    gap_s = following.started_s - call.started_s - generation_s
    limit_s = timeout_s * max(1, len(call.commands))
    if gap_s > limit_s:
        repairs.add(f"an inferred tool gap above the command's time limit: cut to {limit_s:g} s")
    return min(max(0.0, gap_s), limit_s), Provenance.INFERRED


def _kept(calls: list[_Call], i: int, repairs: Repairs) -> int:
    """Reasoning comes before the answer and is not sent again, so where there was some, or where
    the answer does not fit into the next prompt, only the previous prompt is repeated."""
    before, prompt = calls[i - 1], calls[i].prompt or 1
    previous = before.prompt or 1
    whole = previous + (before.output or 1)
    if not before.refused and not before.reasoning and prompt > whole:
        return whole
    if prompt > previous:
        return previous
    if prompt >= (1 - COUNTING_ERROR) * previous:
        repairs.add("a prompt a little shorter than the one before: two ways of counting assumed")
        return prompt - 1
    repairs.add("a prompt much shorter than the one before: only the first prompt counts as kept")
    return min(calls[0].prompt or 1, prompt - 1)


def _prefix(messages: list[Any], opening: int, first_prompt: int) -> SharedPrefix | None:
    """The system prompt; its tokens are its share of the first prompt's characters (`read_traces`
    makes the files that share it agree on one number)."""
    first = mapping(messages[0])
    system = _content(first)
    if first.get("role") != "system" or not system or not opening:
        return None
    count = int(first_prompt * len(system) / opening)
    digest = hashlib.sha256(system.encode()).hexdigest()[:12]
    return SharedPrefix(f"system:{digest}", count) if count else None
