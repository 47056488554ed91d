"""Adds the messages of a turn to its record, for recordings that include them.

In: a chat's request and its answer. Out: fields of the turn's record, from which
`traces.formats.run_turns` rebuilds the program's conversation.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.gateway.answers import ForwardedAnswer, command_in
from harness.gateway.conversations import SYSTEM
from servers.basics.json_object import JsonObject
from servers.records.turns import ChatMessage, TurnRecord
from traces.formats.mini_swe_agent import bash_blocks
from traces.formats.shared.chat_messages import plain_text
from traces.lenient import items, mapping


def add_messages(
    record: TurnRecord, body: JsonObject, repeated: int, answer: ForwardedAnswer
) -> None:
    """Add the messages of a chat to the turn's record; a request that is not a chat has none.

    `repeated`: the number of leading messages that repeat the program's last prompt and answer.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    record.messages = [_message(message) for message in messages[repeated:]]
    record.messages_repeated = repeated
    record.answer = answer.text
    record.command = _command(answer, shell_tool(body.get("tools")))


def _message(message: object) -> ChatMessage:
    """Return a message of the request. Outputs of tools become user messages, which all chat
    templates accept."""
    fields = mapping(message)
    role = fields.get("role")
    role = "system" if role in SYSTEM else "assistant" if role == "assistant" else "user"
    return ChatMessage(role, plain_text(fields.get("content")))


def _command(answer: ForwardedAnswer, shell: str | None) -> str | None:
    calls = [call["function"] for call in answer.message()["tool_calls"]]
    if not calls:
        blocks = bash_blocks(answer.text)
        return blocks[0] if len(blocks) == 1 else None
    return "\n".join(command_in(c["arguments"]) for c in calls if c["name"] == shell) or None


def shell_tool(tools: object) -> str | None:
    """Return the name of the offered shell tool: the first one with a free-text `command`."""
    for name, parameters in functions(tools):
        command = mapping(mapping(parameters.get("properties")).get("command"))
        if command.get("type") == "string" and "enum" not in command:
            return name
    return None


def functions(tools: object) -> Iterator[tuple[str, JsonObject]]:
    """Yield the names and parameters of the offered functions."""
    for tool in items(tools):
        function = mapping(mapping(tool).get("function"))
        if isinstance(name := function.get("name"), str):
            yield name, mapping(function.get("parameters"))
