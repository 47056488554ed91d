"""Reads one rollout of Codex. In: its lines, and the rollout that it was forked from. Out: a
`Thread`, and the places where it starts and awaits sub-agents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.formats.shared.sessions import CalledTool, SessionCall, Thread, tool_name
from traces.lenient import Repairs, items, mapping, moment, parse_json, seconds, tokens
from traces.program import Message

PARENT_FIELDS = ("forked_from_id", "parent_thread_id")
COPY_S = 1.0
"""Lines up to this long after a fork are copies of its parent's lines."""
COUNTS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")
SHELLS = frozenset({"bash", "sh", "zsh", "powershell", "pwsh", "cmd"})
_DURATION = re.compile(r'Wall time: (\d{1,9}(?:\.\d{1,9})?) s|"duration_seconds": ?([\d.]{1,12})')
_HEAD = 1000
"""Length of the beginning of an output that may contain a duration."""
Usage = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """A tool call that waits for sub-agents."""

    call: int
    tool: CalledTool


class Rollout:
    def __init__(self, lines: Sequence[JsonObject], name: str, repairs: Repairs) -> None:
        self.lines = lines
        self.repairs = repairs
        metas = [_payload(line) for line in lines if line.get("type") == "session_meta"]
        self.meta = metas[0] if metas else {}
        self.id = identifier(self.meta.get("id")) or identifier(name) or "rollout"
        self.parent_id = parent_id(self.meta)
        is_fork = len(metas) > 1 or bool(identifier(self.meta.get("forked_from_id")))
        self.has_copies = bool(self.parent_id) and is_fork
        self.thread = Thread(self.id)
        self.started: dict[str, int] = {}
        """The calls that started sub-agents, by the sub-agents' ids."""
        self.waits: dict[str, list[Wait]] = {}
        """The tool calls that waited for sub-agents, by the sub-agents' ids."""
        self._tools: dict[str, Wait] = {}
        self._pending: SessionCall | None = None
        """The call whose items are currently read."""
        self._written: list[str] = []
        self._is_rewritten = False
        self._model = ""

    def read(self, parent: Rollout | None) -> None:
        before: Usage | None = None
        for line in self.lines[self._copied(parent) :]:
            kind, payload = line.get("type"), _payload(line)
            at_s = moment(line.get("timestamp"))
            if kind == "compacted":
                self._is_rewritten = True
            elif kind == "turn_context":
                self._model = self._model or text(payload.get("model"))
            elif kind == "response_item":
                self._item(payload, at_s)
            elif kind == "event_msg" and payload.get("type") == "token_count":
                total = _usage(payload, "total_token_usage")
                if total is not None and total == before:
                    self.repairs.add("a token_count event that repeats the one before: skipped")
                    continue
                before = total or before
                self._end_call(_usage(payload, "last_token_usage"), at_s)
            elif kind == "event_msg":
                self._event(payload, at_s)
        if self._pending is not None:
            self.repairs.add("an answer without a token_count event: left out")
        if self.thread.calls and self.thread.calls[0].continues is not None and not self.parent_id:
            version = text(self.meta.get("cli_version"))
            self.thread.prefix_of = ("codex", version, self._model)

    def _copied(self, parent: Rollout | None) -> int:
        """Return the number of leading lines that are copies of the parent's history: up to the
        last total that both share or, if the parent is missing, the last total written when the
        rollout began."""
        if not self.has_copies:
            return 0
        copied = 0
        if parent is not None:
            for (number, total), (_, other) in zip(self.totals(), parent.totals(), strict=False):
                if total != other:
                    break
                copied = number + 1
        elif (fork_s := moment(self.meta.get("timestamp"))) is not None:
            for number, _ in self.totals():
                at_s = moment(self.lines[number].get("timestamp"))
                if at_s is not None and at_s <= fork_s + COPY_S:
                    copied = number + 1
        if copied:
            self.repairs.add("a history copied from the rollout it was forked from: left out")
        return copied

    def totals(self) -> Iterator[tuple[int, Usage]]:
        """Yield the cumulative counts that differ from their predecessors, with their lines."""
        before: Usage | None = None
        for number, line in enumerate(self.lines):
            payload = _payload(line)
            if payload.get("type") == "token_count":
                total = _usage(payload, "total_token_usage")
                if total is not None and total != before:
                    yield number, total
                    before = total

    def _item(self, item: JsonObject, at_s: float | None) -> None:
        kind = text(item.get("type"))
        if kind == "message" and item.get("role") != "assistant":
            written = _written(item)
            if self._pending is None:
                self.thread.messages.append(Message("user", written))
            self._message(at_s)
        elif kind.endswith("_output"):
            self._output(item, at_s)
        elif kind in ("message", "reasoning") or kind.endswith("_call"):
            call = self._call()
            if at_s is not None:
                call.ended_s = max(at_s, call.ended_s or at_s)
            self._written += [_written(item)] if kind == "message" else []
            if kind.endswith("_call"):
                self._tool(call, item, at_s)

    def _call(self) -> SessionCall:
        """Return the call that an item of the model belongs to."""
        if self._pending is None:
            self._pending = SessionCall(prompt_messages=len(self.thread.messages))
        return self._pending

    def _message(self, at_s: float | None) -> None:
        calls = self.thread.calls
        call = self._pending or (calls[-1] if calls else None)
        if at_s is None:
            return
        if call is None:
            self.thread.started_s = at_s
        else:
            call.message_s = max(at_s, call.message_s or at_s)

    def _tool(self, call: SessionCall, item: JsonObject, at_s: float | None) -> None:
        if item.get("type") == "web_search_call":  # runs within the answer
            return
        arguments = _arguments(item)
        id = identifier(item.get("call_id")) or f"{len(self._tools)}"
        tool = CalledTool(tool_name(item.get("name") or item.get("type"), _script(arguments)), at_s)
        call.tools[id] = tool
        self._tools[id] = Wait(len(self.thread.calls), tool)
        for target in _targets(arguments):
            self.waits.setdefault(target, []).append(self._tools[id])

    def _output(self, item: JsonObject, at_s: float | None) -> None:
        called = self._tools.get(identifier(item.get("call_id")))
        written = _written({"content": item.get("output")})
        if self._pending is None:
            self.thread.messages.append(Message("user", written))
        if called is None or called.tool.answered_s is not None:
            return
        called.tool.answered_s = at_s
        if called.tool.duration_s is None and (found := _DURATION.search(written[:_HEAD])):
            called.tool.duration_s = seconds(found[1] or found[2])

    def _event(self, event: JsonObject, at_s: float | None) -> None:
        kind = event.get("type")
        called = self._tools.get(identifier(event.get("call_id")))
        if kind == "user_message":
            self._message(at_s)
        elif called is not None and kind in ("exec_command_end", "mcp_tool_call_end"):
            duration = mapping(event.get("duration"))
            if (whole_s := seconds(duration.get("secs"))) is not None:
                called.tool.duration_s = whole_s + (seconds(duration.get("nanos")) or 0.0) / 1e9
        elif called is not None and kind == "collab_agent_spawn_end":
            self.started.setdefault(identifier(event.get("new_thread_id")), called.call)

    def _end_call(self, usage: Usage | None, at_s: float | None) -> None:
        if usage is None or not usage[0]:
            return
        call = self._call()
        prompt, cached, output, reasoning = usage
        call.prompt, call.cached, call.output = prompt, cached, output or 1
        call.drops_output = reasoning > 0
        call.continues = None if self._is_rewritten else -1
        self.thread.calls.append(call)
        self.thread.messages.append(Message("assistant", "\n".join(filter(None, self._written))))
        self._pending, self._written, self._is_rewritten = None, [], False


def parent_id(meta: JsonObject) -> str:
    """Return the id of the rollout whose history or task a rollout continues."""
    spawned = mapping(mapping(mapping(meta.get("source")).get("subagent")).get("thread_spawn"))
    ids = (spawned.get("parent_thread_id"), *(meta.get(name) for name in PARENT_FIELDS))
    return next(filter(None, map(identifier, ids)), "")


def _payload(line: JsonObject) -> JsonObject:
    return mapping(line.get("payload"))


def _usage(payload: JsonObject, name: str) -> Usage | None:
    usage = mapping(mapping(payload.get("info")).get(name))
    return tuple(tokens(usage.get(count)) or 0 for count in COUNTS) if usage else None


def _written(item: JsonObject) -> str:
    """Return the text of an item, its parts, or a tool's output."""
    content = item.get("content")
    parts = [content, mapping(content).get("content"), mapping(content).get("output")]
    parts += [mapping(part).get("text") for part in items(content)]
    return "\n".join(filter(None, map(text, parts)))


def _arguments(item: JsonObject) -> JsonObject:
    given = item.get("arguments")
    if isinstance(given, str):
        try:
            return mapping(parse_json(given.encode("utf-8", "replace")))
        except TraceRejected:
            return {}
    return mapping(given) or mapping(item.get("action"))


def _script(arguments: JsonObject) -> str:
    """Return the shell command of a tool call, "" if it has none."""
    given = arguments.get("cmd") or arguments.get("command")
    words = [text(word) for word in items(given)]
    if not words:
        return text(given)
    runs_shell = len(words) > 2 and words[0].rsplit("/", 1)[-1] in SHELLS
    return words[-1] if runs_shell else words[0]


def _targets(arguments: JsonObject) -> Iterator[str]:
    """Yield the ids of the sub-agents for which a tool call waits."""
    for name in ("ids", "targets", "agent_ids"):
        yield from filter(None, map(identifier, items(arguments.get(name))))
