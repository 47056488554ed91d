"""Sessions of Gemini CLI (`~/.gemini/tmp/…/chats/session-*.json` and `.jsonl`).

In: `{sessionId, projectHash, messages[{id, timestamp, type, content, toolCalls, tokens}]}` or,
since version 0.40, JSON Lines: these fields without the messages, then a line for each message,
which replaces an earlier one with its id, and for each patch `{"$set": {…}}`. A session may be in
several files, and the files of its sub-agents have `kind` "subagent". Out: a program for each.
`docs/reference/trace-formats.md` has the rules and repairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.formats.about import PERMISSION, About
from traces.formats.shared.linked import DocumentFile, split
from traces.formats.shared.sessions import (
    CalledTool,
    SessionCall,
    Thread,
    make_programs,
    tool_name,
    whole_prompt,
)
from traces.lenient import (
    Repairs,
    document_start,
    epoch,
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
    sub_agents=True,
    accuracy="known from synthetic samples only",
)

SHELL = "run_shell_command"
PATCH = "$set"


_LINK = re.compile(rb'"(?:sessionId|agentId)"\s*:\s*"([^"\\]+)"')
_BEGAN_MS = re.compile(r"-(\d{13})-")
"""The time at which a tool call began, in its id."""
STARTED_S = 1.0
"""A sub-agent starts at most this long before its tool call, since clocks are not exact."""


def sniff(first_bytes: bytes) -> bool:
    first_bytes = b"\n".join(next((part.encoded for part in split(first_bytes, "")), []))
    return _is_session(document_start(first_bytes)) or _is_session(line_start(first_bytes))


def _is_session(document: object) -> bool:
    return {"sessionId", "projectHash"} <= mapping(document).keys()


def is_sub_agent(_path: Path) -> bool:
    return False


def sub_agents(_path: Path) -> Sequence[Path]:
    return ()


def links(data: bytes, _path: Path) -> set[str]:
    """Return the ids of a session and of its sub-agents."""
    return {id.decode("utf-8", "replace") for id in _LINK.findall(data)}


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    sessions: dict[str, dict[str, JsonObject]] = {}
    """The messages of each session and sub-agent by id, in the order of their first versions."""
    sub_agents: dict[str, JsonObject] = {}
    """The fields of the files of sub-agents."""
    for id, fields, messages in sorted(_files(data, name, repairs), key=lambda f: _span_s(f[2])):
        is_sub_agent = fields.get("kind") == "subagent"
        if id in sessions and not is_sub_agent and not sessions[id].keys() & messages.keys():
            # A file that goes on during another one of its session is a sub-agent's.
            is_sub_agent = _span_s(messages)[0] < _span_s(sessions[id])[1]
        if is_sub_agent:
            known = (i for i in sub_agents if sessions[i].keys() & messages.keys())
            id = next(known, f"{id}/agent-{len(sub_agents) + 1}")
            sub_agents[id] = fields
        if id in sessions:
            repairs.add("a second file of a session: its messages added to those of the first")
            messages = _in_order(sessions[id], messages)
        sessions[id] = messages
    readers = {id: _SessionReader(Thread(id), repairs) for id in sessions}
    for id, reader in readers.items():
        for message in sessions[id].values():
            reader.add(message)
        if id not in sub_agents and reader.thread.calls:
            reader.thread.prefix_of = ("gemini-cli", reader.model)
    if not any(reader.thread.calls for reader in readers.values()):
        raise TraceRejected("no message of the model with token counts")
    claimed: set[int] = set()
    for id, fields in sub_agents.items():
        _add_launches(id, fields, readers, claimed, repairs)
    main_first = sorted(readers, key=lambda id: id in sub_agents)
    return make_programs([readers[id].thread for id in main_first], repairs)


def _add_launches(
    name: str,
    fields: JsonObject,
    readers: Mapping[str, _SessionReader],
    claimed: set[int],
    repairs: Repairs,
) -> None:
    """Add the tool calls that started a sub-agent: those with its id, or else the first one during
    which it began, if possible one that started an agent. `claimed`: those of other sub-agents."""
    thread = readers[name].thread
    others = [sent for other, r in readers.items() if other != name for sent in r.sent]
    ids = {identifier(fields.get(key)) for key in ("sessionId", "agentId")}
    own = [sent for sent in others if sent.agent and sent.agent in ids]
    if not own:
        began_s = thread.started_s or (thread.calls[0].ended_s if thread.calls else None) or 0.0
        during = [s for s in others if s.is_during(began_s) and id(s.tool) not in claimed]
        first = next(iter(sorted(during, key=lambda sent: not sent.agent)), None)
        own = [sent for sent in others if first and sent.agent == first.agent and sent.agent]
        own = own or ([first] if first else [])
    for sent in own:
        claimed.add(id(sent.tool))
        awaited_by = sent.call if sent.tool.answered_s is not None else None
        thread.launch(sent.call, sent.tool.called_s, awaited_by)
    parent = readers.get(identifier(fields.get("sessionId")))
    if not own and parent is not None and parent.thread.calls:
        thread.launch_unseen(parent.thread, repairs)


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
    before = messages.get(id, {})
    later = {name: value for name, value in message.items() if value or name not in before}
    first = {"timestamp": before["timestamp"]} if before.get("timestamp") else {}
    messages[id] = {**before, **later, **first}


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
    own = text(message.get("type")), text(message.get("timestamp")), _text(message.get("content"))
    return identifier(message.get("id")) or " ".join(own)


def _in_order(first: dict[str, JsonObject], second: dict[str, JsonObject]) -> dict[str, JsonObject]:
    """Return the messages of two files of a session, in order of time."""
    merged = dict(first)
    for id, message in second.items():
        _add(merged, id, message)
    times = {id: moment(message.get("timestamp")) or 0.0 for id, message in merged.items()}
    return {id: merged[id] for id in sorted(merged, key=lambda id: times[id])}


@dataclass(frozen=True, slots=True)
class _Sent:
    """A tool call that may have started a sub-agent."""

    call: SessionCall
    tool: CalledTool
    agent: str

    def is_during(self, at_s: float) -> bool:
        begin_s, end_s = self.tool.called_s, self.tool.answered_s
        return begin_s is not None and begin_s - STARTED_S <= at_s <= (end_s or begin_s)


class _SessionReader:
    def __init__(self, thread: Thread, repairs: Repairs) -> None:
        self.thread = thread
        self.repairs = repairs
        self.sent: list[_Sent] = []
        self.model = ""

    def add(self, message: JsonObject) -> None:
        kind, at_s = message.get("type"), moment(message.get("timestamp"))
        if kind == "user":
            self.thread.messages.append(Message("user", _text(message.get("content"))))
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
        call = SessionCall(
            prompt=whole_prompt(prompt, count.get("cached", 0), self.repairs),
            output=max(1, count.get("output", 0) + count.get("thoughts", 0)),
            cached=count.get("cached"),
            drops_output=count.get("thoughts", 0) > 0,
            ended_s=at_s,
            is_late=True,  # an answer without text is written with its tools' results
            prompt_messages=len(self.thread.messages),
        )
        self.model = self.model or text(message.get("model"))
        self.thread.messages.append(Message("assistant", _text(message.get("content"))))
        for number, tool in enumerate(map(mapping, items(message.get("toolCalls")))):
            script = text(mapping(tool.get("args")).get("command"))
            names = tool_name(tool.get("name"), script if tool.get("name") == SHELL else "")
            called = CalledTool(names, _began_s(tool) or at_s, moment(tool.get("timestamp")))
            call.tools[str(number)] = called
            agent = identifier(tool.get("agentId"))
            self.sent.append(_Sent(call, called, agent))
            self.thread.messages.append(Message("user", _result(tool)))
        self.thread.calls.append(call)


def _began_s(tool: JsonObject) -> float | None:
    """Return the time at which a tool call began, as its id says."""
    found = _BEGAN_MS.search(identifier(tool.get("id")))
    return epoch(int(found[1]) / 1000) if found else None


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
