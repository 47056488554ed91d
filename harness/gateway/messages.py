"""What was said in a turn, for a recording that keeps it.

In: a chat's request and its answer. Out: fields of the turn's line, from which
`traces.formats.run_turns` puts
the program's conversation together again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.gateway.answers import Answer, command_in
from harness.gateway.conversations import SYSTEM
from harness.replay.schedule import Line
from traces.formats.mini_swe_agent import bash_blocks


def said_in(body: Mapping[str, Any], repeated: int, answer: Answer) -> Line:
    """`repeated`: so many messages of the prompt, from the first, are those of the program's last
    prompt and the answer to it. Nothing where the request is no chat."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return {}
    return {
        "messages": [_message(message) for message in messages[repeated:]],
        "messages_repeated": repeated,
        "answer": answer.text,
        "command": _command(answer, shell_tool(body.get("tools"))),
    }


def _message(message: object) -> dict[str, str]:
    """A tool's output is a user's message, so that any chat template takes it."""
    said = _mapping(message)
    role = said.get("role")
    known = "system" if role in SYSTEM else "assistant" if role == "assistant" else "user"
    return {"role": known, "content": _text(said.get("content"))}


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(_mapping(part).get("text") or "") for part in content)
    return content if isinstance(content, str) else ""


def _command(answer: Answer, shell: str | None) -> str | None:
    """Of an answer that calls nothing, its one bash block."""
    calls = [call["function"] for call in answer.message()["tool_calls"]]
    if not calls:
        blocks = bash_blocks(answer.text)
        return blocks[0] if len(blocks) == 1 else None
    return "\n".join(command_in(c["arguments"]) for c in calls if c["name"] == shell) or None


def shell_tool(tools: object) -> str | None:
    """Of the tools that a request offers, the one that runs shell commands: the first with a
    `command` that is free text."""
    for name, parameters in functions(tools):
        asked = _mapping(_mapping(parameters.get("properties")).get("command"))
        if asked.get("type") == "string" and "enum" not in asked:
            return name
    return None


def functions(tools: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and parameters."""
    for tool in tools if isinstance(tools, list) else ():
        function = _mapping(_mapping(tool).get("function"))
        if isinstance(name := function.get("name"), str):
            yield name, _mapping(function.get("parameters"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
