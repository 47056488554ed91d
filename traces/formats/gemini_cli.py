"""Sessions of Gemini CLI (`~/.gemini/tmp/…/chats/session-*.json` and `.jsonl`).

In: `{sessionId, projectHash, messages[{id, timestamp, type, content, toolCalls, tokens}]}` or,
since version 0.40, JSON Lines: these fields without the messages, then a line for each message,
which replaces an earlier one with its id, and for each patch `{"$set": {…}}`. A session may be in
several files, and the files of its sub-agents have `kind` "subagent". Out: a program for each.
`docs/reference/trace-formats.md` has the rules and repairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.formats.about import PERMISSION, About
from traces.formats.shared.calls import Call, CalledTool
from traces.formats.shared.chat_messages import plain_text
from traces.formats.shared.launches import Launches
from traces.formats.shared.linked import DocumentFile, split
from traces.formats.shared.sessions import Sent, Thread, make_programs, tool_name, whole_prompt
from traces.lenient import (
    Repairs,
    epoch,
    items,
    line_start,
    mapping,
    moment,
    parse_json,
    starts,
    tokens,
)
from traces.program import Message, Program

ABOUT = About(
    name="gemini-cli",
    order=4,
    keys=(("sessionId", "projectHash", "messages"),),
    holds="sessions of Gemini CLI",
    tool_times=PERMISSION,
    sub_agents=True,
    accuracy="known from synthetic samples only",
)

SHELL = "run_shell_command"
PATCH = "$set"
_LINK = re.compile(rb'"(?:sessionId|agentId)"\s*:\s*"([^"\\]+)"')
_BEGAN_MS = re.compile(r"-(\d{13})-")
"""The time at which a tool call began, in its id."""


def sniff(first_bytes: bytes) -> bool:
    first_bytes = b"\n".join(next((part.encoded for part in split(first_bytes, "")), []))
    return any(map(_is_session, starts(first_bytes)))


def _is_session(document: object) -> bool:
    return {"sessionId", "projectHash"} <= mapping(document).keys()


def links(data: bytes, _path: Path) -> set[str]:
    """Return the ids of a session and of its sub-agents."""
    return {id.decode("utf-8", "replace") for id in _LINK.findall(data)}


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    sessions: dict[str, _Session] = {}
    """The sessions and sub-agents by id."""
    sub_agents: dict[str, JsonObject] = {}
    """The fields of the files of sub-agents."""
    names: list[str] = []
    """The ids of sub-agents."""
    numbers: dict[str, int] = {}
    """The first sub-agent with each message, as an index of `names`."""
    files = [(_span_s(f[2]), *f) for f in _files(data, name, repairs)]
    for (begin_s, end_s), id, fields, messages in sorted(files, key=lambda file: file[0]):
        session, is_sub_agent = sessions.get(id), fields.get("kind") == "subagent"
        if session is not None and session.messages.keys().isdisjoint(messages):
            # A file that goes on during another one of its session is a sub-agent's.
            is_sub_agent = is_sub_agent or begin_s < session.end_s
        if is_sub_agent:
            number = min((numbers[m] for m in messages if m in numbers), default=len(names))
            if number == len(names):
                names.append(f"{id}/agent-{number + 1}")
            for message in messages:
                numbers[message] = min(number, numbers.get(message, number))
            id = names[number]
            sub_agents[id] = fields
        if id in sessions:
            repairs.add("a second file of a session: its messages added to the first file's")
            sessions[id].add(messages)
        else:
            sessions[id] = _Session(messages, end_s)
    readers = {id: _GeminiSession(Thread(id), repairs) for id in sessions}
    for id, reader in readers.items():
        for sent_message in sessions[id].in_order():
            reader.add(sent_message)
        if id not in sub_agents and reader.thread.calls:
            reader.thread.prefix_of = ("gemini-cli", reader.model)
    if not any(reader.thread.calls for reader in readers.values()):
        raise TraceRejected("no message of the model with token counts")
    launches = Launches(sent for reader in readers.values() for sent in reader.sent)
    for id in sorted(sub_agents, key=lambda id: _began_at_s(readers[id].thread)):
        thread, fields = readers[id].thread, sub_agents[id]
        parent = readers.get(identifier(fields.get("sessionId")))
        ids = {identifier(fields.get(key)) for key in ("sessionId", "agentId")}
        sent = launches.of(id, ids, began_s=_began_at_s(thread))
        thread.launched_by(sent, parent.thread if parent is not None else None, repairs)
    main_first = sorted(readers, key=lambda id: id in sub_agents)
    return make_programs([readers[id].thread for id in main_first], repairs)


@dataclass(slots=True)
class _Session:
    messages: dict[str, JsonObject]
    """By id, in the order of their first versions."""
    end_s: float
    """Time of the last message; 0 if no message has one."""
    is_of_several_files: bool = False

    def add(self, messages: Mapping[str, JsonObject]) -> None:
        """Add the messages of another file."""
        self.is_of_several_files = True
        for id, message in messages.items():
            _add(self.messages, id, message)
            self.end_s = max(self.end_s, _at_s(self.messages[id]))

    def in_order(self) -> Iterable[JsonObject]:
        """Return the messages; of several files, in order of time."""
        messages = self.messages.values()
        return sorted(messages, key=_at_s) if self.is_of_several_files else messages


def _at_s(message: JsonObject) -> float:
    return moment(message.get("timestamp")) or 0.0


def _began_at_s(thread: Thread) -> float:
    """Return when a sub-agent began."""
    return thread.started_s or (thread.calls[0].end_s if thread.calls else None) or 0.0


def _files(
    data: bytes, name: str, repairs: Repairs
) -> Iterator[tuple[str, JsonObject, dict[str, JsonObject]]]:
    """Yield the id of the session of each file, its fields, and its messages."""
    parts = split(data, name)
    for part in parts:
        try:
            fields, messages = _session(part, repairs)
        except TraceRejected:
            if len(parts) == 1:
                raise
            repairs.add("a file of the session that is not complete JSON: left out")
        else:
            id = identifier(fields.get("sessionId")) or identifier(part.name) or "session"
            yield id, fields, messages


def _span_s(messages: Mapping[str, JsonObject]) -> tuple[float, float]:
    """Return the times of the first and the last message."""
    times = [s for m in messages.values() if (s := moment(m.get("timestamp"))) is not None]
    return min(times, default=0.0), max(times, default=0.0)


def _add(messages: dict[str, JsonObject], id: str, message: JsonObject) -> None:
    """Add a message or its next version, which need not repeat all fields. The first one has the
    time."""
    before = messages.setdefault(id, message)
    first = before.get("timestamp")
    if before is not message:
        before.update({name: m for name, m in message.items() if m or name not in before})
        before["timestamp"] = first or before.get("timestamp")


def _session(part: DocumentFile, repairs: Repairs) -> tuple[JsonObject, dict[str, JsonObject]]:
    """Return the fields of a session in a file, and its messages by id."""
    messages: dict[str, JsonObject] = {}
    session: JsonObject = {}
    is_lines = len(part.encoded) > 1 and _is_session(line_start(part.encoded[0]))
    for line in part.lines(repairs) if is_lines else [mapping(parse_json(part.whole))]:
        if isinstance(line.get(PATCH), dict):
            session.update(line[PATCH])
        elif _is_session(line) or not is_lines:
            session.update(line)
        else:
            if (id := _message_id(line)) in messages:
                repairs.add("a message that is written again: its last version counts")
            _add(messages, id, line)
        for message in map(mapping, items(session.pop("messages", None))):
            _add(messages, _message_id(message), message)
    return session, messages


def _message_id(message: JsonObject) -> str:
    own = (
        text(message.get("type")),
        text(message.get("timestamp")),
        plain_text(message.get("content")),
    )
    return identifier(message.get("id")) or " ".join(own)


class _GeminiSession:
    def __init__(self, thread: Thread, repairs: Repairs) -> None:
        self.thread = thread
        self.repairs = repairs
        self.sent: list[Sent] = []
        self.model = ""

    def add(self, message: JsonObject) -> None:
        kind, at_s = message.get("type"), moment(message.get("timestamp"))
        if kind == "user":
            self.thread.messages.append(Message("user", plain_text(message.get("content"))))
            self.thread.message(at_s)
        elif kind == "gemini":
            self._answer(message, at_s)

    def _answer(self, message: JsonObject, at_s: float | None) -> None:
        usage = mapping(message.get("tokens"))
        count = {name: tokens(n) or 0 for name, n in usage.items()}
        prompt = count.get("input", 0) + count.get("tool", 0)
        if not prompt:
            self.repairs.add("an answer without token counts: left out")
            return
        call = Call(
            prompt=whole_prompt(prompt, count.get("cached", 0), self.repairs),
            output=max(1, count.get("output", 0) + count.get("thoughts", 0)),
            cached=count.get("cached"),
            drops_output=count.get("thoughts", 0) > 0,
            end_s=at_s,
            is_late=True,  # an answer without text is written with its tools' results
            prompt_messages=len(self.thread.messages),
        )
        self.model = self.model or text(message.get("model"))
        self.thread.messages.append(Message("assistant", plain_text(message.get("content"))))
        for number, tool in enumerate(map(mapping, items(message.get("toolCalls")))):
            script = text(mapping(tool.get("args")).get("command"))
            names = tool_name(tool.get("name"), script if tool.get("name") == SHELL else "")
            called = CalledTool(names, _began_s(tool) or at_s, moment(tool.get("timestamp")))
            call.called[str(number)] = called
            agent = identifier(tool.get("agentId"))
            self.sent.append(Sent(call, called, self.thread.id, agent))
            self.thread.messages.append(Message("user", _result(tool)))
        self.thread.calls.append(call)


def _began_s(tool: JsonObject) -> float | None:
    """Return the time at which a tool call began, as its id says."""
    found = _BEGAN_MS.search(identifier(tool.get("id")))
    return epoch(int(found[1]) / 1000) if found else None


def _result(tool: JsonObject) -> str:
    """Return the output of a tool call."""
    responses = (
        mapping(mapping(part).get("functionResponse")) for part in items(tool.get("result"))
    )
    return "\n".join(text(mapping(r.get("response")).get("output")) for r in responses)
