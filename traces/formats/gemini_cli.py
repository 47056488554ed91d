"""Sessions of Gemini CLI (`~/.gemini/tmp/…/chats/session-*.json` and `.jsonl`).

In: `{sessionId, projectHash, messages[{id, timestamp, type, content, toolCalls, tokens}]}` or,
since version 0.40, JSON Lines: these fields without the messages, then a line for each message,
which replaces an earlier one with its id, and for each patch `{"$set": {…}}`. Out: one program.
`docs/reference/trace-formats.md` has the rules and repairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.formats.about import PERMISSION, About
from traces.formats.shared.linked import split
from traces.formats.shared.sessions import CalledTool, SessionCall, Thread, make_programs, tool_name
from traces.lenient import (
    Repairs,
    document_start,
    items,
    line_start,
    mapping,
    moment,
    parse_json,
    tokens,
)
from traces.program import Message, Program

ABOUT = About(
    name="gemini-cli",
    order=4,
    keys=(("sessionId", "projectHash", "messages"),),
    holds="sessions of Gemini CLI",
    tokens="recorded",
    tool_times=PERMISSION,
    repeats="inferred",
    starts=True,
    sub_agents=False,
    accuracy="known from synthetic samples only",
)

SHELL = "run_shell_command"
PATCH = "$set"


def sniff(first_bytes: bytes) -> bool:
    return _is_session(document_start(first_bytes)) or _is_session(line_start(first_bytes))


def _is_session(document: object) -> bool:
    return {"sessionId", "projectHash"} <= mapping(document).keys()


def is_sub_agent(_path: Path) -> bool:
    return False


def sub_agents(_path: Path) -> Sequence[Path]:
    return ()


def links(_data: bytes, _path: Path) -> frozenset[str]:
    """Return nothing: each session is in one file."""
    return frozenset()


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    session, messages = _session(data, name, repairs)
    id = identifier(session.get("sessionId")) or identifier(name) or "session"
    reader = _SessionReader(Thread(id), repairs)
    for message in messages:
        reader.add(message)
    if not reader.thread.calls:
        raise TraceRejected("no message of the model with token counts")
    return make_programs([reader.thread], repairs)


def _session(data: bytes, name: str, repairs: Repairs) -> tuple[JsonObject, list[JsonObject]]:
    """Return a session's fields, and its messages in the order of their first versions."""
    first_line, _, others = data.lstrip().partition(b"\n")
    if not _is_session(line_start(first_line)) or not others.strip():
        session = mapping(parse_json(data))
        return session, [mapping(message) for message in items(session.get("messages"))]
    session = {}
    messages: dict[str, JsonObject] = {}
    for part in split(data, name):
        for line in part.lines(repairs):
            if isinstance(line.get(PATCH), dict):
                session.update(line[PATCH])
            elif _is_session(line):
                session.update(line)
            else:
                id = identifier(line.get("id")) or f"line {len(messages)}"
                if id in messages:
                    repairs.add("a message that is written again: its last version counts")
                messages[id] = line
            for message in map(mapping, items(session.pop("messages", None))):
                messages[identifier(message.get("id")) or f"line {len(messages)}"] = message
    return session, list(messages.values())


class _SessionReader:
    def __init__(self, thread: Thread, repairs: Repairs) -> None:
        self.thread = thread
        self.repairs = repairs

    def add(self, message: JsonObject) -> None:
        kind, at_s = message.get("type"), moment(message.get("timestamp"))
        if kind == "user":
            self._user(message, at_s)
        elif kind == "gemini":
            self._answer(message, at_s)

    def _user(self, message: JsonObject, at_s: float | None) -> None:
        calls = self.thread.calls
        self.thread.messages.append(Message("user", _text(message.get("content"))))
        if at_s is None:
            return
        if calls:
            calls[-1].message_s = max(at_s, calls[-1].message_s or at_s)
        else:
            self.thread.started_s = at_s

    def _answer(self, message: JsonObject, at_s: float | None) -> None:
        usage = mapping(message.get("tokens"))
        count = {name: tokens(n) or 0 for name, n in usage.items()}
        prompt = count.get("input", 0) + count.get("tool", 0)
        if not prompt:
            self.repairs.add("an answer without token counts: left out")
            return
        call = SessionCall(
            prompt=prompt,
            output=max(1, count.get("output", 0) + count.get("thoughts", 0)),
            cached=count.get("cached"),
            drops_output=count.get("thoughts", 0) > 0,
            ended_s=at_s,
            prompt_messages=len(self.thread.messages),
        )
        if not self.thread.calls:
            self.thread.prefix_of = ("gemini-cli", text(message.get("model")))
        self.thread.messages.append(Message("assistant", _text(message.get("content"))))
        for number, tool in enumerate(map(mapping, items(message.get("toolCalls")))):
            script = text(mapping(tool.get("args")).get("command"))
            names = tool_name(tool.get("name"), script if tool.get("name") == SHELL else "")
            call.tools[str(number)] = CalledTool(names, at_s, moment(tool.get("timestamp")))
            self.thread.messages.append(Message("user", _result(tool)))
        self.thread.calls.append(call)


def _text(content: object) -> str:
    """Return the text of a message: a string, or a list of parts."""
    parts = [text(mapping(part).get("text")) for part in items(content)]
    return "\n".join([text(content), *parts] if text(content) else parts)


def _result(tool: JsonObject) -> str:
    """Return the output of a tool call."""
    responses = (
        mapping(mapping(part).get("functionResponse")) for part in items(tool.get("result"))
    )
    return "\n".join(text(mapping(r.get("response")).get("output")) for r in responses)
