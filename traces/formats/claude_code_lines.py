"""Reads the lines of one session or sub-agent of Claude Code.

In: lines in the order of their file. Out: a `Thread`, the tool calls by id, and the tool calls that
start sub-agents. The lines of one call have its id and repeat its usage; a line's `parentUuid` is
the line that it continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.formats.shared.calls import Call
from traces.formats.shared.sessions import Sent, Thread, leave_out_uncounted, tool_name
from traces.lenient import Repairs, items, mapping, moment, seconds, tokens
from traces.program import Message
from traces.token_counts import CHARACTERS_PER_TOKEN

AGENT_TOOLS = frozenset({"Task", "Agent", "SendMessage"})
"""Tools that start a sub-agent, or give it a further task."""
SHELLS = frozenset({"Bash", "run_shell_command"})
NO_MESSAGE = re.compile(r"\s*(<command-|<local-command-|Caveat:|\[Request interrupted)")
"""Beginnings of text that the client wrote as the user."""
UNKNOWN = -1
"""Stands for the call before a line whose chain begins in a missing line, or in a copy."""
TOOL_CALL_TOKENS = 50
"""Tokens of a tool call in addition to its name and arguments. Fitted to 81 answers with complete
counts and without thinking: the median error is 8%, and at most 30% in nine of ten answers."""
IFLOW = "session-"
"""Beginning of the ids of iFlow's sessions, whose lines are like these but without stop reasons and
with the cached tokens in `input_tokens`."""
UNIQUE = "msg_"
"""Beginning of the ids that Anthropic gives to messages."""
PROMPT_TOKENS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass(slots=True)
class _Answer:
    """Data of a call that only its lines have."""

    index: int
    message: int
    characters: int = 0
    tokens: int = 0
    """Tokens of its tool calls in addition to their names and arguments."""
    counts: list[int] = field(default_factory=list)
    """The counts of `PROMPT_TOKENS`."""
    blocks: set[str] = field(default_factory=set)
    is_complete: bool = False
    """Whether a line has a stop reason. Otherwise the output count may be an early one."""
    text: list[str] = field(default_factory=list)


class AgentLines:
    """The lines of one agent, added in order. `read_calls` maps each call that was read to its
    agent, so that copies of a call count once. `request_ids` maps ids of requests to calls."""

    def __init__(
        self,
        key: str,
        session: str,
        read_calls: dict[str, str],
        request_ids: dict[str, str],
        repairs: Repairs,
    ):
        self.thread = Thread(key)
        self.session = session
        """The recorded id of its session."""
        self.key = key
        self.read_calls = read_calls
        self.request_ids = request_ids
        self.repairs = repairs
        self.sent: dict[str, Sent] = {}
        self._outcomes: dict[str, JsonObject] = {}
        self.first_prompt = ""
        self.system: tuple[str, ...] = ()
        """Version and model, if its first call begins a conversation."""
        self._answers: dict[str, _Answer] = {}
        self._last_ids: dict[str, str] = {}
        """The last call with each id that may not be unique."""
        self._last_has_thinking = False
        self._before: dict[str, int | None] = {}
        """The last call on the chain up to each line; None if there is none."""

    def add(self, line: JsonObject) -> None:
        uuid, parent = text(line.get("uuid")), line.get("parentUuid")
        if uuid in self._before:
            self.repairs.add("a line that occurs twice: counted once")
            return
        before = self._before.get(text(parent), UNKNOWN) if parent is not None else None
        if line.get("subtype") == "compact_boundary":
            before = None
        self._before[uuid] = before
        if line.get("type") == "assistant":
            self._before[uuid] = self._assistant(line, before)
        elif line.get("type") == "user":
            self._user(line)

    def _assistant(self, line: JsonObject, before: int | None) -> int | None:
        """Add a line of an answer. Return the last call up to it."""
        message = mapping(line.get("message"))
        if message.get("model") == "<synthetic>" or line.get("isApiErrorMessage") is True:
            self.repairs.add("an answer that no model gave, such as an API error: left out")
            return before
        usage = mapping(message.get("usage"))
        counts = [tokens(usage.get(name)) or 0 for name in PROMPT_TOKENS]
        request = identifier(line.get("requestId"))
        id = self._id(identifier(message.get("id")), request, line, sum(counts))
        if self.read_calls.setdefault(id, self.key) != self.key:
            self.repairs.add("a line of a call that another file or agent has: counted once")
            return UNKNOWN
        answer = self._answers.get(id)
        if answer is None:
            answer = self._answers[id] = self._new_answer(line, message, before)
        call = self.thread.calls[answer.index]
        call.prompt = max(call.prompt, sum(counts))
        call.output = max(call.output, tokens(usage.get("output_tokens")) or 0)
        if (cached := tokens(usage.get("cache_read_input_tokens"))) is not None:
            call.cached = max(call.cached or 0, cached)
        is_end = message.get("stop_reason") is not None and not answer.is_complete
        answer.is_complete |= is_end or self.session.startswith(IFLOW)
        answer.counts = max(answer.counts, counts)
        at_s = moment(line.get("timestamp"))
        blocks = [mapping(block) for block in items(message.get("content"))]
        new = [block for block in blocks if _block_id(block) not in answer.blocks]
        if blocks and not new and not is_end:
            self.repairs.add("a line of an answer that is written again: counted once")
            return answer.index
        if at_s is not None:
            call.end_s = max(at_s, call.end_s or at_s)
        for block in new:
            answer.blocks.add(_block_id(block))
            self._block(answer, call, block, at_s)
        return answer.index

    def _id(self, id: str, request: str, line: JsonObject, prompt: int) -> str:
        """Return the id of a line's call: one line of a call may have the message's id, and another
        only the request's. Some gateways draw ids from a few numbers, so that several calls
        have one; their requests or prompts differ."""
        if not id:
            return self.request_ids.get(request, request) or identifier(line.get("uuid"))
        if request and request in self.read_calls:
            return request
        if not id.startswith(UNIQUE):
            last = self.request_ids.get(request, "")
            if not last:
                last = self._last_ids.get(id, id)
                if prompt and (last not in self._answers or self._prompt(last) not in (0, prompt)):
                    last = f"{id} {prompt}"
            if prompt:  # the first line may have had no prompt
                self.read_calls.setdefault(f"{id} {prompt}", self.key)
            id = self._last_ids[id] = last
        if request:
            self.request_ids.setdefault(request, id)
        return id

    def _prompt(self, id: str) -> int:
        return self.thread.calls[self._answers[id].index].prompt

    def _new_answer(self, line: JsonObject, message: JsonObject, before: int | None) -> _Answer:
        calls, messages = self.thread.calls, self.thread.messages
        if not calls and before is None:
            self.system = (text(line.get("version")), text(message.get("model")))
        calls.append(Call(continues=before, prompt_messages=len(messages)))
        messages.append(Message("assistant", ""))
        self._last_has_thinking = False
        return _Answer(len(calls) - 1, len(messages) - 1)

    def _block(self, answer: _Answer, call: Call, block: JsonObject, at_s: float | None) -> None:
        kind = block.get("type")
        written = text(block.get("text")) if kind == "text" else ""
        answer.text.append(written)
        answer.characters += len(written) + len(text(block.get("thinking")))
        self._last_has_thinking |= kind in ("thinking", "redacted_thinking")
        if kind != "tool_use":
            return
        name, given = text(block.get("name")), mapping(block.get("input"))
        answer.tokens += TOOL_CALL_TOKENS
        answer.characters += len(name) + len(json.dumps(given))
        script = text(given.get("command")) if name in SHELLS else ""
        id = identifier(block.get("id")) or f"{answer.index}.{len(call.called)}"
        if (earlier := self.thread.tools.get(id)) is not None and earlier.names:
            self._outcomes.pop(id, None)
        tool = self.thread.call_tool(call, id, tool_name(name, script), at_s)
        prompt = text(given.get("prompt"))
        if name in AGENT_TOOLS:
            kind, agent = identifier(given.get("subagent_type")), given.get("resume")
            to, in_background = identifier(agent or given.get("to")), name == "SendMessage"
            self.sent[id] = Sent(call, tool, self.key, to, prompt, kind, in_background)
            self._report(id)

    def _user(self, line: JsonObject) -> None:
        content = mapping(line.get("message")).get("content")
        at_s = moment(line.get("timestamp"))
        results = [block for block in _blocks(content) if block.get("type") == "tool_result"]
        for block in results:
            outcome = mapping(line.get("toolUseResult")) if len(results) == 1 else {}
            self._result(identifier(block.get("tool_use_id")), outcome, at_s)
        written = "\n".join(filter(None, _texts(content)))
        self.thread.messages.append(Message("user", written))
        if not results:
            self._message(line, written, at_s)

    def _result(self, id: str, outcome: JsonObject, at_s: float | None) -> None:
        if (tool := self.thread.answer_tool(id, at_s)) is None:
            return
        measured_s = seconds(outcome.get("durationSeconds"))
        for name in ("durationMs", "totalDurationMs"):
            if (measured_ms := seconds(outcome.get(name))) is not None:
                measured_s = measured_ms / 1000
        tool.duration_s = measured_s
        self._outcomes[id] = outcome
        self._report(id)

    def _report(self, id: str) -> None:
        """Add what the result of a tool call says of the sub-agent that it started."""
        sent, outcome = self.sent.get(id), self._outcomes.get(id)
        if sent is not None and outcome is not None:
            sent.agent = identifier(outcome.get("agentId")) or sent.agent
            in_background = outcome.get("isAsync") is True
            sent.in_background |= in_background or outcome.get("status") == "async_launched"

    def _message(self, line: JsonObject, written: str, at_s: float | None) -> None:
        calls = self.thread.calls
        self.first_prompt = self.first_prompt or written
        by_client = any(line.get(name) is True for name in ("isMeta", "isCompactSummary"))
        if calls and calls[-1].called and (by_client or NO_MESSAGE.match(written)):
            return
        self.thread.message(at_s)
        if calls and at_s is not None:
            calls[-1].drops_output = self._last_has_thinking

    def finish(self) -> None:
        """Complete the counts and the answers' texts, and leave out answers without counts."""
        counts = [answer.counts for answer in self._answers.values() if any(answer.counts)]
        includes_cached = self.session.startswith(IFLOW)
        if not includes_cached and _include_cached(counts):
            self.repairs.add("prompt tokens that include the cached ones: these not added")
            includes_cached = True
        if includes_cached:
            for answer in self._answers.values():
                self.thread.calls[answer.index].prompt = answer.counts[0]
        for answer in self._answers.values():
            call, written = self.thread.calls[answer.index], "\n".join(filter(None, answer.text))
            self.thread.messages[answer.message] = Message("assistant", written)
            if not call.prompt:
                self.repairs.add("an answer without token counts: left out")
                continue
            estimate = max(1, answer.tokens + round(answer.characters / CHARACTERS_PER_TOKEN))
            if not call.output or (not answer.is_complete and call.output < estimate / 2):
                self.repairs.add_inferred_count(
                    "an answer with only an initial output count: estimated from its length"
                )
                call.output = estimate
        leave_out_uncounted(self.thread)


def _block_id(block: JsonObject) -> str:
    return identifier(block.get("id")) or json.dumps(block, sort_keys=True)


def _include_cached(counts: Sequence[Sequence[int]]) -> bool:
    """Return whether new tokens include cached ones, as with some gateways: else, every prompt
    would be at least twice as long as what was cached of it."""
    cached = [(new, read) for new, written, read in counts if read and not written]
    pairs = pairwise(new for new, _, _ in counts)
    grows = all(before <= new for before, new in pairs)
    return (
        len(cached) > 1
        and grows
        and all(new >= read > new / 2 for new, read in cached)
        and not any(written for _, written, _ in counts)
    )


def _blocks(content: object) -> Iterator[JsonObject]:
    yield from map(mapping, items(content))


def _texts(content: object) -> Iterator[str]:
    """Yield the texts of a message and of the results in it."""
    if isinstance(content, str):
        yield text(content)
    for block in _blocks(content):
        yield text(block.get("text"))
        if block.get("type") == "tool_result":
            results = block.get("content")
            yield text(results)
            yield from (text(part.get("text")) for part in _blocks(results))
