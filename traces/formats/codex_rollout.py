"""Reads one rollout of Codex. In: its lines, and the rollout that it was forked from. Out: a
`Thread`, and the places where it starts and awaits sub-agents.

A `token_count` event or a `token_usage_record` counts a call. The items of the call precede it, or
follow it in versions that write a whole answer at its end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.formats.shared.calls import Call, CalledTool
from traces.formats.shared.chat_messages import from_text
from traces.formats.shared.sessions import Sent, Thread, tool_name, whole_prompt
from traces.laws import Law
from traces.lenient import Repairs, items, mapping, moment, seconds, tokens
from traces.program import Message

PARENT_FIELDS = ("forked_from_id", "parent_thread_id")
COPY_S = 1.0
"""Lines up to this long after a fork are copies of its parent's lines."""
COUNTS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")
SHELLS = frozenset({"bash", "sh", "zsh", "powershell", "pwsh", "cmd"})
SENDS = frozenset({"send_input", "resume_agent", "send_message", "followup_task"})
"""Tools that give a sub-agent its next task."""
_DURATION = re.compile(r'Wall time: (\d{1,9}(?:\.\d{1,9})?) s|"duration_seconds": ?([\d.]{1,12})')
_STARTED = re.compile(r'"agent_id": ?"([^"\\]{1,100})"')
WRITTEN_AGAIN = "an item or a call that is written again: counted once"
_HEAD, _TAIL = 1000, 200
"""Lengths of the beginning and the end of an output that may contain a duration."""
Usage = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Event:
    """A line that matters. Its kind is the line's, or the payload's of an `event_msg`; or
    `answer` for an item of the model, and `count` for the counts of a call."""

    kind: str
    payload: JsonObject
    at_s: float | None
    usage: Usage = ()
    precedes: bool = False
    """Whether these counts preceded the items of their call in the file."""
    compacts: bool = False
    """Whether these are the counts of a call that compacts the history, which has no items."""


class _Items:
    """Which items and records were read. Some models number the tool calls of each answer, so an
    equal call is another one if the first has its output and its counts."""

    def __init__(self) -> None:
        self._read: set[tuple[str, ...]] = set()
        self.answered: set[str] = set()
        """Ids of calls whose output was read."""
        self._counted: set[str] = set()
        """Ids of items that new counts followed."""
        self._uncounted: set[str] = set()
        self._doubtful: list[_Event] = []
        """Calls since the last counts that equal an earlier one."""
        self.again: set[int] = set()
        """The doubtful calls of a history that is written again, by identity."""

    def add(self, event: _Event) -> bool:
        """Add an item or a record. Return whether it is new."""
        payload, id = event.payload, _own_id(event.payload)
        item = id, *(str(payload.get(name)) for name in ("name", "arguments", "input", "action"))
        if item in self._read:
            if id not in self.answered or id not in self._counted:
                return False
            self._doubtful.append(event)
        self._read.add(item)
        self.answered.discard(id)
        self._counted.discard(id)
        self._uncounted.add(id)
        return True

    def count(self) -> None:
        """Add new counts of a call."""
        self._counted |= self._uncounted
        self._uncounted.clear()
        self._doubtful.clear()

    def count_again(self) -> int:
        """Count the doubtful calls as repeats of earlier ones, and return their number."""
        self.again.update(map(id, self._doubtful))
        number = len(self._doubtful)
        self._doubtful.clear()
        return number


class Rollout:
    def __init__(self, lines: Sequence[JsonObject], name: str, repairs: Repairs) -> None:
        self.lines = lines
        self.repairs = repairs
        metas = [_payload(line) for line in lines if line.get("type") == "session_meta"]
        self.meta = metas[0] if metas else {}
        self.id = identifier(self.meta.get("id")) or identifier(name) or "rollout"
        head = map(_payload, takewhile(lambda line: not _is_of_call(line), lines))
        others = [identifier(p.get("id")) for p in head if "cli_version" in p]
        self.parent_id = parent_id(self.meta) or next((i for i in others if i != self.id), "")
        self.is_fork = len(metas) > 1 or bool(identifier(self.meta.get("forked_from_id")))
        self.thread = Thread(self.id)
        self.started: dict[str, Call] = {}
        """The calls that started sub-agents, by the sub-agents' ids."""
        self.waits: dict[str, list[Sent]] = {}
        """The tool calls that waited for sub-agents, by the sub-agents' ids."""
        self.sent: dict[str, list[Sent]] = {}
        """The tool calls that gave sub-agents further tasks, by the sub-agents' ids."""
        self._owners: dict[str, Call] = {}
        """The call of each tool, once it is known."""
        self._pending: Call | None = None
        """The call whose items are currently read and whose counts were not."""
        self._written: list[str] = []
        self._after: list[Message] = []
        """Messages after the items of the pending call."""
        self._is_over = False
        """Whether a person's message or an interruption follows the items of the current call."""
        self._is_rewritten = False
        self._model = ""

    def read(self, parent: Rollout | None) -> None:
        for event in _with_layout(_EventReader(self, self._copied(parent)).events()):
            kind, payload, at_s = event.kind, event.payload, event.at_s
            if kind == "count":
                self._end_call(event)
            elif kind == "replay":
                if self._pending is not None and not self._pending.called:
                    self._pending, self._written = None, []
            elif kind == "compacted":
                self._is_rewritten = True
                if self.thread.calls and self.thread.calls[-1].compacts:
                    self._message(at_s)
            elif kind == "turn_context":
                self._model = self._model or text(payload.get("model"))
            elif kind == "answer":
                self._item(payload, at_s)
            elif kind == "message":
                self._add(Message("user", _written(payload)))
                self._message(at_s)
            elif kind == "output":
                self._output(payload, at_s)
            else:
                self._event(kind, payload, at_s)
        self._leave_out()
        if self.thread.calls and self.thread.calls[0].continues is not None and not self.parent_id:
            version = text(self.meta.get("cli_version"))
            self.thread.prefix_of = ("codex", version, self._model)

    def _copied(self, parent: Rollout | None) -> int:
        """Return the number of leading lines that are copies of the parent's history: up to the
        last line of a call that the parent has too. Without the parent's file, up to the last one
        that was written when the rollout began, which may be of a quick first call."""
        if not self.parent_id:
            return 0
        fork_s = moment(self.meta.get("timestamp"))
        until_s = float("inf") if fork_s is None else fork_s + COPY_S
        known = set(filter(None, parent.ids(until_s))) if parent is not None else set()
        copied = 0
        for number, line in enumerate(self.lines):
            if not _is_of_call(line):
                continue
            at_s = moment(line.get("timestamp"))
            is_early = fork_s is not None and at_s is not None and at_s <= until_s
            is_known = _id(line) in known and (is_early or (self.is_fork and _counts(line)))
            by_time = is_early and (self.is_fork or (at_s or 0.0) < (fork_s or 0.0))
            if is_known or (by_time and not known):
                copied = number + 1
            elif _counts(line):
                break
        if copied and any(map(_counts, self.lines[:copied])):
            how = "left out"
            if parent is None:
                how += f" by its times; give the rollout of {self.parent_id} too"
            self.repairs.add(f"a history copied from the rollout it was forked from: {how}")
        return copied

    def ids(self, until_s: float) -> Iterator[object]:
        """Yield what identifies the calls written until a time: ids and cumulative counts."""
        for line in self.lines:
            if _is_of_call(line) and (moment(line.get("timestamp")) or 0.0) <= until_s:
                yield _id(line)

    @property
    def length(self) -> int:
        """The number of lines with counts."""
        return sum(map(bool, map(_counts, self.lines)))

    def _item(self, item: JsonObject, at_s: float | None) -> None:
        kind = text(item.get("type"))
        call = self._call()
        if at_s is not None:
            call.end_s = max(at_s, call.end_s or at_s)
        self._written += [_written(item)] if kind == "message" else []
        if kind.endswith("_call"):
            self._tool(call, item, at_s)

    def _call(self) -> Call:
        """Return the call that an item of the model belongs to."""
        if self._is_over:
            self._leave_out()
        self._is_over = False
        if self._pending is None:
            self._pending = Call(prompt_messages=len(self.thread.messages))
        return self._pending

    def _leave_out(self) -> None:
        """Leave out the pending call, if its counts were not recorded."""
        call, self._pending = self._pending, None
        if call is None:
            return
        self.repairs.add("an answer without token counts, such as an interrupted one: left out")
        self.thread.messages += self._after
        self._written, self._after = [], []
        self._message(call.message_s)

    def _add(self, message: Message) -> None:
        (self.thread.messages if self._pending is None else self._after).append(message)

    def _message(self, at_s: float | None) -> None:
        self._is_over = True
        if self._pending is None:
            self.thread.message(at_s)
        elif at_s is not None:
            self._pending.message_s = max(at_s, self._pending.message_s or at_s)

    def _tool(self, call: Call, item: JsonObject, at_s: float | None) -> None:
        if item.get("type") == "web_search_call":  # runs within the answer
            return
        arguments = _arguments(item)
        id = identifier(item.get("call_id")) or f"{len(self.thread.tools)}"
        names = tool_name(item.get("name") or item.get("type"), _script(arguments))
        tool = self.thread.call_tool(call, id, names, at_s)
        self._owners[id] = call
        sends = text(item.get("name")) in SENDS
        for target in _targets(arguments):
            (self.sent if sends else self.waits).setdefault(target, []).append(Sent(call, tool))

    def _output(self, item: JsonObject, at_s: float | None) -> None:
        written = _written({"content": item.get("output")})
        self._add(Message("user", written))
        if not (id := identifier(item.get("call_id"))):
            return
        if (tool := self.thread.answer_tool(id, at_s)) is None:
            return
        if id in self._owners and (started := _STARTED.search(written[:_HEAD])):
            self.started.setdefault(started[1], self._owners[id])
        found = _DURATION.search(written[:_HEAD]) or _DURATION.search(written[-_TAIL:])
        if tool.duration_s is None and found:
            tool.duration_s = seconds(found[1] or found[2])

    def _event(self, kind: str, event: JsonObject, at_s: float | None) -> None:
        id = identifier(event.get("call_id"))
        if kind == "user_message":
            self._message(at_s)
        elif kind == "turn_aborted":
            self._is_over = True
        elif id and kind in ("exec_command_end", "mcp_tool_call_end"):
            duration = mapping(event.get("duration"))
            if (whole_s := seconds(duration.get("secs"))) is not None:
                tool = self.thread.tools.setdefault(id, CalledTool((), None))
                tool.duration_s = whole_s + (seconds(duration.get("nanos")) or 0.0) / 1e9
        elif id in self._owners and kind == "collab_agent_spawn_end":
            self.started.setdefault(identifier(event.get("new_thread_id")), self._owners[id])

    def _end_call(self, event: _Event) -> None:
        messages = self.thread.messages
        call = None if event.compacts else self._pending
        call = Call(prompt_messages=len(messages)) if call is None else call
        prompt, cached, output, reasoning = event.usage
        call.prompt = whole_prompt(prompt, cached, self.repairs)
        call.cached, call.output = cached, output or 1
        call.drops_output = reasoning > 0
        call.compacts = event.compacts
        if call.end_s is None or event.precedes:
            call.end_s, call.is_late = event.at_s, event.precedes
        for tool in call.called.values() if event.precedes else ():
            tool.called_s = event.at_s
        self.thread.calls.append(call)
        if event.compacts:
            return
        call.continues = None if self._is_rewritten else -1
        self._is_rewritten = False
        messages.append(Message("assistant", "\n".join(filter(None, self._written))))
        messages += self._after
        self._pending, self._written, self._after = None, [], []


class _CodexCalls:
    """Which calls were counted. A call may have a record, an event, or both."""

    def __init__(self) -> None:
        self._alone = {"record": Counter[Usage](), "event": Counter[Usage]()}
        """The usages for which there was only one of the two."""

    def is_new(self, kind: str, usage: Usage) -> bool:
        """Add a record or an event. Return whether its call is new."""
        if self.take("event" if kind == "record" else "record", usage):
            return False
        self._alone[kind][usage] += 1
        return True

    @property
    def prompts_only_recorded(self) -> int:
        """The prompt tokens of records without an event."""
        return sum(usage[0] * number for usage, number in self._alone["record"].items())

    def take(self, kind: str, usage: Usage) -> bool:
        """Return whether there was only a record, or only an event, with a usage. Forget it."""
        is_there = self._alone[kind][usage] > 0
        self._alone[kind][usage] -= is_there
        return is_there


class _Totals:
    """The cumulative counts that were read."""

    def __init__(self, copied: Sequence[Usage]) -> None:
        self._seen = set(copied)
        self._latest = self._last = copied[-1] if copied else None
        """`_last` is the last new total, `_latest` may be an earlier one that is written again."""

    def is_latest(self, total: Usage) -> bool | None:
        """Return whether a total that was read before is the latest one; None if it is new."""
        is_latest = total == self._latest if total in self._seen else None
        self._latest = total
        self._seen.add(total)
        return is_latest

    def grow(self, total: Usage) -> tuple[Usage, bool]:
        """Add a new total. Return its growth, or the total itself if it began anew, and whether
        there was one before."""
        before, self._last = self._last, total
        return (before and _minus(total, before)) or total, before is not None


class _EventReader:
    """Reads the events after the copied lines of a rollout, each item and each call once."""

    def __init__(self, rollout: Rollout, copied: int) -> None:
        self.rollout, self.repairs = rollout, rollout.repairs
        self.lines = rollout.lines[copied:]
        totals = map(_total, rollout.lines[:copied])
        self.totals = _Totals([total for total in totals if total is not None])
        self.items, self.calls = _Items(), _CodexCalls()
        self.found: list[_Event] = []
        self.compacted: int | None = None
        """Index of the last compaction since the last event with counts."""
        self.stated = 0
        """Prompt tokens by which the totals grew."""
        ids = (_payload(line).get("compaction_response_id") for line in rollout.lines)
        self.compactions = set(map(identifier, ids)) - {""}

    def events(self) -> list[_Event]:
        for event in map(_event_of, self.lines):
            is_item = event.kind in ("answer", "token_usage_record") and _own_id(event.payload)
            if is_item and not self.items.add(event):
                self.repairs.add(WRITTEN_AGAIN)
            elif event.kind == "token_usage_record":
                self._record(event)
            elif event.kind == "token_count":
                self._count(event)
            else:
                if event.kind == "compacted":
                    self.compacted = len(self.found)
                elif event.kind == "output":
                    self.items.answered.add(identifier(event.payload.get("call_id")))
                self.found.append(event)
        read = sum(event.usage[0] for event in self.found if event.kind == "count")
        in_totals = read - self.calls.prompts_only_recorded
        self.repairs.laws.total(Law.TOTALS, in_totals, self.stated)
        return [event for event in self.found if id(event) not in self.items.again]

    def _record(self, event: _Event) -> None:
        usage, own = _usage(event.payload.get("usage")), (None, self.rollout.id)
        is_copy = "id" in self.rollout.meta and event.payload.get("thread_id") not in own
        if usage and usage[0] and not is_copy and self.calls.is_new("record", usage):
            compacts = identifier(event.payload.get("response_id")) in self.compactions
            self._add(replace(event, kind="count", usage=usage, compacts=compacts))

    def _count(self, event: _Event) -> None:
        info = mapping(event.payload.get("info"))
        total, usage = _usage(info.get("total_token_usage")), _usage(info.get("last_token_usage"))
        if total is not None and (is_latest := self.totals.is_latest(total)) is not None:
            self._replay(event, is_latest)
            return
        grown, has_grown = self.totals.grow(total) if total is not None else ((), False)
        if usage is None or not usage[0]:
            usage = grown
            if usage:
                self.repairs.add("a call without its own counts: from the file's totals")
        elif has_grown:
            self._rest(_minus(grown, usage))
        if total is not None and usage:
            self.stated += (grown if has_grown else usage)[0]
        if not usage or not usage[0]:
            return
        self.compacted = None
        if self.calls.is_new("event", usage):
            self._add(replace(event, kind="count", usage=usage))

    def _replay(self, event: _Event, is_latest: bool) -> None:
        what = "that repeats the one before" if is_latest else "with the total of an earlier one"
        self.repairs.add(f"a token_count event {what}: skipped")
        if not is_latest:
            self.repairs.add(WRITTEN_AGAIN, self.items.count_again())
            self.found.append(replace(event, kind="replay"))

    def _rest(self, rest: Usage) -> None:
        """Add what a total has grown by beyond the counts of its call: the counts of a call that
        compacted the history, if there was a compaction."""
        if not rest or not rest[0] or self.calls.take("record", rest):
            return
        if self.compacted is not None and rest[2]:
            at_s = self.found[self.compacted].at_s
            self.found.insert(self.compacted, _Event("count", {}, at_s, rest, compacts=True))

    def _add(self, event: _Event) -> None:
        self.items.count()
        self.found.append(event)


def parent_id(meta: JsonObject) -> str:
    """Return the id of the rollout whose history or task a rollout continues."""
    spawned = mapping(mapping(mapping(meta.get("source")).get("subagent")).get("thread_spawn"))
    ids = (spawned.get("parent_thread_id"), *(meta.get(name) for name in PARENT_FIELDS))
    return next(filter(None, map(identifier, ids)), "")


def _with_layout(events: Sequence[_Event]) -> Iterator[_Event]:
    """Yield the events with counts after their items. Whether they precede them in the file is
    decided from one message of a person to the next: the first counts have no items before them,
    and there are items after the last ones, or items follow counts sooner than counts items."""
    left = False
    """Whether items without counts precede."""
    begin = 0
    for end in range(1, len(events) + 1):
        if end < len(events) and events[end].kind not in ("message", "user_message"):
            continue
        part = events[begin:end]
        begin = end
        kinds = [e.kind for e in part if e.kind in ("answer", "count") and not e.compacts]
        precede = not left and kinds[:1] == ["count"] and "answer" in kinds
        if precede and kinds[-1] == "count":
            after_s, before_s = _waits_s(part)
            precede = after_s < before_s
        left = not precede and (kinds[-1:] == ["answer"] or (left and not kinds))
        counts: list[_Event] = []
        for event in part:
            if not precede or event.kind != "count" or event.compacts:
                yield event
                continue
            yield from counts
            counts = [replace(event, precedes=True)]
        yield from counts


def _waits_s(events: Sequence[_Event]) -> tuple[float, float]:
    """Return the times from counts to the next items, and from items or outputs to the next counts,
    in seconds."""
    waits = {"count": 0.0, "answer": 0.0}
    last: tuple[str, float] | None = None
    for event in events:
        kind = "answer" if event.kind == "output" else event.kind
        if kind not in waits or event.at_s is None or event.compacts:
            continue
        if last is not None and last[0] != kind:
            waits[last[0]] += event.at_s - last[1]
        last = kind, event.at_s
    return waits["count"], waits["answer"]


def _event_of(line: JsonObject) -> _Event:
    payload, kind = _payload(line), text(line.get("type"))
    if kind == "event_msg":
        kind = text(payload.get("type"))
    elif kind == "response_item":
        kind = text(payload.get("type"))
        if kind == "message" and payload.get("role") != "assistant":
            kind = "message"
        elif kind.endswith("_output"):
            kind = "output"
        elif kind in ("message", "reasoning") or kind.endswith("_call"):
            kind = "answer"
    return _Event(kind, payload, moment(line.get("timestamp")))


def _is_of_call(line: JsonObject) -> bool:
    return _event_of(line).kind in ("answer", "output") or _counts(line)


def _counts(line: JsonObject) -> bool:
    return line.get("type") == "token_usage_record" or _total(line) is not None


def _id(line: JsonObject) -> object:
    """Return what identifies a line of a call in the rollout and in its copies; "" if nothing."""
    return _total(line) or _own_id(_payload(line))


def _own_id(payload: JsonObject) -> str:
    ids = (payload.get(name) for name in ("call_id", "response_id", "id"))
    return next(filter(None, map(identifier, ids)), "")


def _payload(line: JsonObject) -> JsonObject:
    return mapping(line.get("payload"))


def _total(line: JsonObject) -> Usage | None:
    """Return the cumulative counts of a line."""
    payload = _payload(line)
    if payload.get("type") != "token_count":
        return None
    return _usage(mapping(payload.get("info")).get("total_token_usage"))


def _usage(value: object) -> Usage | None:
    usage = mapping(value)
    return tuple(tokens(usage.get(count)) or 0 for count in COUNTS) if usage else None


def _minus(a: Usage, b: Usage) -> Usage:
    """Return the difference of two usages; () if a count is negative."""
    difference = tuple(x - y for x, y in zip(a, b, strict=True))
    return () if min(difference) < 0 else difference


def _written(item: JsonObject) -> str:
    """Return the text of an item, its parts, or a tool's output."""
    content = item.get("content")
    parts = [content, mapping(content).get("content"), mapping(content).get("output")]
    parts += [mapping(part).get("text") for part in items(content)]
    return "\n".join(filter(None, map(text, parts)))


def _arguments(item: JsonObject) -> JsonObject:
    return mapping(from_text(item.get("arguments"))) or mapping(item.get("action"))


def _script(arguments: JsonObject) -> str:
    """Return the shell command of a tool call, "" if it has none."""
    given = arguments.get("cmd") or arguments.get("command")
    words = [text(word) for word in items(given)]
    if not words:
        return text(given)
    runs_shell = len(words) > 2 and words[0].rsplit("/", 1)[-1] in SHELLS
    return words[-1] if runs_shell else words[0]


def _targets(arguments: JsonObject) -> Iterator[str]:
    """Yield the ids of the sub-agents that a tool call concerns."""
    for name in ("ids", "targets", "agent_ids", "id", "target", "agent_id"):
        given = arguments.get(name)
        listed = given if isinstance(given, list) else [given]
        yield from filter(None, map(identifier, listed))
