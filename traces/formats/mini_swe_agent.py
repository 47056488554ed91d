"""mini-swe-agent trajectories, `mini-swe-agent-1` and `mini-swe-agent-1.1`.

In: `{info, messages, trajectory_format, instance_id}`. Out: one program with one turn per LLM call,
which is an assistant message, a Responses API object, or (v2) a format-error message with the
refused response. Times in seconds, lengths in tokens. Tool gaps are measured if the answer and its
observation have timestamps (v2), else inferred from the starts of generations (v1);
`docs/reference/trace-formats.md` has the rules for gaps and for reasoning tokens.
"""

from __future__ import annotations

import re
from typing import Any

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from servers.tool_names import command_names, tool_names
from traces.assumptions import Gap
from traces.formats.about import About
from traces.formats.shared.calls import Call, fill_usage, first_count, generation_s
from traces.formats.shared.chat_messages import plain_text
from traces.formats.shared.transcript import Transcript
from traces.laws import Law
from traces.lenient import (
    Repairs,
    document_start,
    epoch,
    items,
    mapping,
    parse_json,
    seconds,
    tokens,
)
from traces.program import Program, Provenance

ABOUT = About(
    name="mini-swe-agent",
    order=5,
    holds="trajectories of mini-swe-agent",
    tool_times="measured (v2), inferred (v1)",
    accuracy="v1's tool times: median to about a second, mean too high",
    without="without usage: refused",
)

DEFAULT_COMMAND_TIMEOUT_S = 60.0
"""The command timeout in mini-swe-agent's SWE-bench runs."""

MARKS = {"info", "trajectory_format", "instance_id"}
"""Fields of trajectories, besides `messages`; another one is `extra` of a message."""
_BLOCK = re.compile(r"```(?:bash|mswea_bash_command)\s*\n(.*?)\n```", re.DOTALL)


def sniff(first_bytes: bytes) -> bool:
    document = mapping(document_start(first_bytes))
    messages = map(mapping, items(document.get("messages")))
    is_marked = bool(MARKS & document.keys()) or any("extra" in message for message in messages)
    return "messages" in document and is_marked


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    return read_trajectory(mapping(parse_json(data)), name, repairs)


def read_trajectory(document: JsonObject, name: str, repairs: Repairs) -> list[Program]:
    messages = items(document.get("messages"))
    read = Transcript()
    for message in messages:
        if isinstance(message, dict):
            _add(read, message)
        else:
            repairs.add("a message that is not an object: left out")
    calls = read.calls
    if not calls:
        raise TraceRejected("no LLM call in its messages")
    stats = mapping(mapping(document.get("info")).get("model_stats"))
    repairs.laws.total(Law.CALLS, len(calls), tokens(stats.get("api_calls")))
    fill_usage(calls, repairs)
    timeout_s = _command_timeout_s(document)
    gaps = [_gap(calls, i, timeout_s, repairs) for i in range(len(calls))]
    started_s = calls[0].start_s if calls[0].start_s is not None else calls[0].end_s
    return [read.program(identifier(document.get("instance_id")) or name, gaps, repairs, started_s)]


def _add(read: Transcript, message: JsonObject) -> None:
    """Add a message, whose tool output or Responses object is text in later prompts."""
    call = _call(message) if _is_call(message) else None
    if call is None and read.calls:
        read.calls[-1].answered(_timestamp(message))
    role = "assistant" if message.get("object") == "response" else text(message.get("role"))
    content, output = plain_text(message.get("content")), text(message.get("output"))
    read.say(role, content or output, call, len(output) if content else 0)


def _is_call(message: JsonObject) -> bool:
    refused = isinstance(_usage(message), dict)
    return message.get("role") == "assistant" or message.get("object") == "response" or refused


def _usage(message: JsonObject) -> Any:
    response = mapping(mapping(message.get("extra")).get("response"))
    return response.get("usage") if response else message.get("usage")


def _timestamp(message: JsonObject) -> float | None:
    extra = mapping(message.get("extra"))
    return epoch(extra.get("timestamp")) or epoch(message.get("timestamp"))


def _call(message: JsonObject) -> Call:
    extra = mapping(message.get("extra"))
    response = mapping(extra.get("response")) or message
    usage = mapping(_usage(message))
    details = mapping(usage.get("completion_tokens_details") or usage.get("output_tokens_details"))
    prompt_details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    refused = message.get("role") == "user"
    call = Call(
        first_count(usage, "prompt_tokens", "input_tokens") or 0,
        first_count(usage, "completion_tokens", "output_tokens") or 0,
        epoch(response.get("created")) or epoch(response.get("created_at")),
        None if refused else _timestamp(message),
        # After a format error, no tool runs and the next prompt lacks the answer.
        cached=tokens(mapping(prompt_details).get("cached_tokens")),
        drops_output=refused or bool(tokens(details.get("reasoning_tokens"))),
    )
    if refused:
        return call
    if "actions" in extra:
        commands = (mapping(action).get("command") for action in items(extra["actions"]))
        call.commands = tuple(text(command) for command in commands if isinstance(command, str))
        call.tools = tuple(n for command in call.commands for n in command_names(command))
    else:
        blocks = bash_blocks(plain_text(message.get("content")))
        # Any other number of blocks is a format error: the agent runs nothing and repeats the call.
        call.commands = tuple(blocks) if len(blocks) == 1 else ()
        call.tools = tuple(n for command in call.commands for n in command_names(command))
        if not call.commands and message.get("tool_calls"):
            call.tools = tool_names(items(message.get("tool_calls")))
    return call


def bash_blocks(answer: str) -> list[str]:
    """Return the commands in an answer. The agent runs the command only if there is exactly one."""
    return [str(block) for block in _BLOCK.findall(answer)]


def _command_timeout_s(document: JsonObject) -> float:
    config = mapping(mapping(document.get("info")).get("config"))
    timeout_s = seconds(mapping(config.get("environment")).get("timeout"))
    return timeout_s or DEFAULT_COMMAND_TIMEOUT_S


def _gap(calls: list[Call], i: int, timeout_s: float, repairs: Repairs) -> Gap:
    if i + 1 == len(calls):
        return 0.0, Provenance.MEASURED
    call, following = calls[i], calls[i + 1]
    if (measured := call.measured_gap(repairs)) is not None:
        return measured
    if not call.tools and not call.commands:
        return 0.0, Provenance.INFERRED
    if call.start_s is None or following.start_s is None:
        repairs.add("a turn without its time or the next turn's: tool gap set to 0")
        return 0.0, Provenance.INFERRED
    gap_s = following.start_s - call.start_s - generation_s(call.output)
    limit_s = timeout_s * max(1, len(call.commands))
    if gap_s > limit_s:
        repairs.add(f"an inferred tool gap above the command timeout: cut to {limit_s:g} s")
    return min(max(0.0, gap_s), limit_s), Provenance.INFERRED
