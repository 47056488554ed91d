"""The messages of a turn, for a recording that keeps them.

In: a chat's request and its answer. Out: fields of the turn's record, from which
`traces.formats.run_turns` rebuilds the program's conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.gateway.answers import Answer, command_in
from harness.gateway.conversations import SYSTEM
from servers.records import ChatMessage, TurnRecord
from traces.formats.mini_swe_agent import bash_blocks


def add_messages(
    record: TurnRecord, body: Mapping[str, Any], repeated: int, answer: Answer
) -> None:
    """Add the messages of a chat to the turn's record; a request that is not a chat has none.

    `repeated`: the number of messages at the prompt's beginning that the program's last prompt and
    its answer already hold.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    record.messages = [_message(message) for message in messages[repeated:]]
    record.messages_repeated = repeated
    record.answer = answer.text
    record.command = _command(answer, shell_tool(body.get("tools")))


def _message(message: object) -> ChatMessage:
    """A message of the request. The output of a tool becomes a user message, so that any chat
    template accepts it."""
    fields = _mapping(message)
    role = fields.get("role")
    known = "system" if role in SYSTEM else "assistant" if role == "assistant" else "user"
    return ChatMessage(known, _text(fields.get("content")))


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(_mapping(part).get("text") or "") for part in content)
    return content if isinstance(content, str) else ""


def _command(answer: Answer, shell: str | None) -> str | None:
    """The commands of the answer's shell calls; if it calls no tool, its only bash block."""
    calls = [call["function"] for call in answer.message()["tool_calls"]]
    if not calls:
        blocks = bash_blocks(answer.text)
        return blocks[0] if len(blocks) == 1 else None
    return "\n".join(command_in(c["arguments"]) for c in calls if c["name"] == shell) or None


def shell_tool(tools: object) -> str | None:
    """Name of the offered tool that runs shell commands: the first with a free-text `command`."""
    for name, parameters in functions(tools):
        command = _mapping(_mapping(parameters.get("properties")).get("command"))
        if command.get("type") == "string" and "enum" not in command:
            return name
    return None


def functions(tools: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and parameters of the offered functions."""
    for tool in tools if isinstance(tools, list) else ():
        function = _mapping(_mapping(tool).get("function"))
        if isinstance(name := function.get("name"), str):
            yield name, _mapping(function.get("parameters"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
