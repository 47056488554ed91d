"""Converts recorded sessions of command-line agents (Claude Code, Codex, Gemini CLI) to programs.

In: threads, which are the calls of an agent or sub-agent, with token counts, tools and times. Out:
programs. Times are in Unix seconds, lengths in tokens. `docs/reference/trace-formats.md` has the
rules that all three formats share.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from servers.basics.text import identifier
from servers.tool_names import call_names
from traces.assumptions import Gap
from traces.formats.shared.balance import balance
from traces.formats.shared.calls import (
    COUNTING_ERROR,
    COUNTS_DIFFER,
    Call,
    CalledTool,
    kept_tokens,
    most_kept,
    turn_of,
)
from traces.lenient import MAX_GAP_S, Repairs
from traces.program import Fork, Message, Program, Provenance, SharedPrefix

ABSENCE_S = 3600.0
"""An unexplained gap of at least this length is a person's absence, and ends a program. No provider
keeps a prompt in its cache for longer."""
MESSAGE_DELAY_S = 1.0
"""A person's message at least this long after the last tool result was awaited, else queued."""
PERSON_TOOLS = frozenset({"AskUserQuestion", "ExitPlanMode", "request_user_input"})
"""Tools whose time is a person's time to answer."""
_PROGRAM = re.compile(r"[\w.+-]{1,40}")


@dataclass(slots=True)
class Sent:
    """A tool call that may start a sub-agent, give it a further task, or await it."""

    call: Call
    tool: CalledTool
    thread: str = ""
    """The agent that made it."""
    agent: str = ""
    """The id of the sub-agent, if it is recorded."""
    prompt: str = ""
    kind: str = ""
    in_background: bool = False

    @property
    def awaited_by(self) -> Call | None:
        """The call after which the parent has the answer; None if it does not wait."""
        return self.call if self.tool.answered_s is not None and not self.in_background else None


@dataclass(frozen=True, slots=True)
class SubagentLaunch:
    """Where a run of a sub-agent was started."""

    call: Call
    """Of the parent."""
    awaited_by: Call | None = None
    """The call of the parent after which it has the sub-agent's answer; None if it never waits."""


@dataclass(slots=True)
class Thread:
    """The calls of an agent or of one of its sub-agents."""

    id: str
    calls: list[Call] = field(default_factory=list)
    started_s: float | None = None
    """Time of the message that started it."""
    launches: dict[int, SubagentLaunch] = field(default_factory=dict)
    """Of a sub-agent: where each of its runs was started, by the run's first call."""
    prefix_of: tuple[str, ...] = ()
    """Identifies its system prompt; empty if more of the first prompt is in the cache."""
    messages: list[Message] = field(default_factory=list)
    tools: dict[str, CalledTool] = field(default_factory=dict)
    _latest_s: list[float] = field(default_factory=list)
    """For each call, the latest end up to it."""
    _earliest_s: list[float] = field(default_factory=list)
    """For each call, the earliest end from it on."""

    def runs(self) -> list[tuple[int, int, SubagentLaunch]]:
        """Return the first call, the end and the launch of each run of a sub-agent."""
        begins = sorted(self.launches)
        ends = [*begins[1:], len(self.calls)]
        return [(b, e, self.launches[b]) for b, e in zip(begins, ends, strict=True)]

    def call_tool(
        self, call: Call, id: str, names: tuple[str, ...], at_s: float | None
    ) -> CalledTool:
        """Add a tool call, whose result may have come before it."""
        tool = self.tools.get(id)
        if tool is None or tool.names:  # some models number the tool calls of each answer
            tool = self.tools[id] = CalledTool((), at_s)
        call.called[id] = tool
        tool.names, tool.called_s = names, at_s
        return tool

    def answer_tool(self, id: str, at_s: float | None) -> CalledTool | None:
        """Add the result of a tool call. Return the call, or None if it had a result before."""
        tool = self.tools.setdefault(id, CalledTool((), None))
        if tool.answered_s is not None:
            return None
        tool.answered_s = at_s
        return tool

    def message(self, at_s: float | None) -> None:
        """Add a message that is not a tool's result."""
        if at_s is not None and self.calls:
            self.calls[-1].message_s = max(at_s, self.calls[-1].message_s or at_s)
        elif at_s is not None:
            self.started_s = at_s

    def launch(self, call: Call, at_s: float | None, awaited_by: Call | None = None) -> None:
        """Add the launch of a sub-agent by a call of its parent. Each after the first one begins
        with the first call after it; it is ignored if the sub-agent was at work, or does nothing
        more. Called when all calls are known."""
        self._measure()
        run = bisect_right(self._latest_s, at_s) if self.launches and at_s else 0
        run = run if run < len(self.calls) else 0
        if run not in self.launches and not (run and self.calls[run - 1].called):
            self.launches[run] = SubagentLaunch(call, awaited_by)

    def launched_by(self, sent: Sequence[Sent], parent: Thread | None, repairs: Repairs) -> None:
        """Add the launches of a sub-agent by tool calls, or else one by its parent that is not
        recorded."""
        for each in sent:
            if len(self.launches) == max(1, len(self.calls)):
                break
            self.launch(each.call, each.tool.called_s, each.awaited_by)
        if not sent and parent is not None and parent.calls:
            what = "a sub-agent whose start is not recorded"
            repairs.add(f"{what}: after the last call before it, not awaited")
            self.launch(parent.last_call_before(self.started_s or 0.0), None)

    def last_call_before(self, at_s: float) -> Call:
        """Return the last call that had ended; the first one if none had. Called when all calls are
        known."""
        self._measure()
        return self.calls[max(0, bisect_right(self._earliest_s, at_s) - 1)]

    def _measure(self) -> None:
        """Find the ends by which launches are placed."""
        if len(self._latest_s) != len(self.calls):
            ends_s = [call.end_s or 0.0 for call in self.calls]
            self._latest_s = list(accumulate(ends_s, max))
            self._earliest_s = list(accumulate(reversed(ends_s), min))[::-1]


def whole_prompt(prompt: int, cached: int, repairs: Repairs) -> int:
    """Return the length of a prompt with its cached tokens: fewer tokens cannot include them."""
    if cached <= prompt:
        return prompt
    repairs.add("prompt tokens without the cached ones: these added")
    return prompt + cached


def leave_out_uncounted(thread: Thread) -> None:
    """Remove calls without a prompt. A call that continued one continues what that one did, and the
    message after it was sent after the call before it."""
    kept: list[Call] = []
    places: list[int | None] = []
    for call in thread.calls:
        if call.continues is not None and call.continues >= 0:
            call.continues = places[call.continues]
        if call.prompt:
            places.append(len(kept))
            kept.append(call)
            continue
        places.append(call.continues if call.continues != -1 else len(kept) - 1)
        if kept and call.message_s is not None:
            kept[-1].message_s = max(call.message_s, kept[-1].message_s or 0.0)
    thread.calls = kept


def tool_name(name: object, script: str = "") -> tuple[str, ...]:
    """Return the names under which a tool call is counted: the programs that a shell command runs,
    without arguments and without scripts in a person's own folders; else the tool's name."""
    tool = identifier(name) or "tool"
    if not script:
        return (tool,)
    words = (word.rpartition("/") for word in call_names(tool, script))
    programs = tuple(
        program
        for folder, _, program in words
        if _PROGRAM.fullmatch(program) and (not folder or folder.endswith("bin"))
    )
    return programs or (tool,)


def make_programs(threads: Sequence[Thread], repairs: Repairs) -> list[Program]:
    """Return the programs of the threads that have calls, in order. A launch in a thread without
    calls is ignored, so its sub-agent becomes a program without a parent."""
    by_id = {thread.id: thread for thread in threads if thread.calls}
    maker = _Maker(by_id, repairs)
    return [program for thread in by_id.values() for program in maker.programs(thread)]


class _Maker:
    def __init__(self, threads: Mapping[str, Thread], repairs: Repairs) -> None:
        self.threads = threads
        self.repairs = repairs
        self.places: dict[int, tuple[Thread, int]] = {}
        """The thread and the index of each call, by its identity."""
        for thread in threads.values():
            for i, call in enumerate(thread.calls):
                self.places[id(call)] = thread, i
                if call.continues == i - 1:
                    call.continues = -1
                call.end_before_tools()
        self.launched = {id for id, thread in threads.items() if self._is_launched(thread)}
        """The sub-agents whose launching calls are known."""
        self.joined_s: dict[int, float] = {}
        """The end of the last sub-agent that a call waits for, by the call's identity."""
        for thread in threads.values():
            for begin, end, launch in thread.runs() if thread.id in self.launched else ():
                ends_s = [s for call in thread.calls[begin:end] if (s := call.end_s) is not None]
                if launch.awaited_by is not None and ends_s:
                    key = id(launch.awaited_by)
                    self.joined_s[key] = max([*ends_s, self.joined_s.get(key, 0.0)])
        for thread in threads.values():
            for i in range(len(thread.calls)):
                self._find_gap(thread, i)
        self.starts = {id: self._starts(thread) for id, thread in threads.items()}
        """The first calls of a thread's programs."""
        self.prefixes = _prefix_lengths(threads.values())

    def _is_launched(self, thread: Thread) -> bool:
        launches = thread.launches.values()
        return bool(launches) and all(id(launch.call) in self.places for launch in launches)

    def programs(self, thread: Thread) -> list[Program]:
        starts = self.starts[thread.id]
        ends = [*starts[1:], len(thread.calls)]
        return [
            self._program(thread, k, begin, end)
            for k, (begin, end) in enumerate(zip(starts, ends, strict=True))
        ]

    def _program(self, thread: Thread, k: int, begin: int, end: int) -> Program:
        calls = thread.calls[begin:end]
        gaps = balance(calls, [_gap(calls, i) for i in range(len(calls))], self.repairs)
        turns = tuple(
            turn_of(call, self._kept(thread.calls, begin + i) if i else 0, gap)
            for i, (call, gap) in enumerate(zip(calls, gaps, strict=True))
        )
        started_s = thread.started_s if begin == 0 else thread.calls[begin - 1].message_s
        fork = self._fork(thread, begin, started_s)
        last = thread.calls[end].prompt_messages if end < len(thread.calls) else None
        return Program(
            _program_id(thread.id, k),
            turns,
            self._prefix(thread),
            fork,
            None if fork else calls[0].end_s if started_s is None else started_s,
            messages=tuple(thread.messages[:last]),
            prompt_messages=tuple(call.prompt_messages for call in calls),
        )

    def _prefix(self, thread: Thread) -> SharedPrefix | None:
        length = self.prefixes.get(thread.prefix_of, 0)
        digest = hashlib.sha256("\n".join(thread.prefix_of).encode()).hexdigest()[:12]
        return SharedPrefix(f"system:{digest}", length) if length else None

    def _find_gap(self, thread: Thread, i: int) -> None:
        """Set the tools of a call and the gap after it."""
        call, finished_s = thread.calls[i], thread.calls[i].tools_finished_s
        call.tools = tuple(name for tool in call.called.values() for name in tool.names)
        call.gap = 0.0, Provenance.MEASURED
        if i + 1 == len(thread.calls):
            return
        awaited_s, message_s = finished_s, call.message_s
        if message_s is not None and message_s >= (finished_s or 0.0) + MESSAGE_DELAY_S:
            awaited_s, call.tools = message_s, ()
        elif PERSON_TOOLS.issuperset(call.tools):
            call.tools = ()
        if awaited_s is None or call.end_s is None:
            self.repairs.add("a call without the time of its end or of what followed: gap set to 0")
            call.gap = 0.0, Provenance.INFERRED
            return
        answers_s = [tool.answered_s for tool in call.called.values()]
        last_s = max([awaited_s, *filter(None, answers_s)])
        provenance = Provenance.MEASURED
        if last_s < call.end_s or (call.tools and call.is_late and last_s == call.end_s):
            self.repairs.add("a tool's result or a message before the answer's end: gap set to 0")
            provenance = Provenance.INFERRED
        elif call.tools and any(tool.may_wait_for_permission for tool in call.called.values()):
            provenance = Provenance.MEASURED_WITH_PERMISSION
        begin_s = max(call.end_s, self.joined_s.get(id(call), 0.0))
        call.gap = min(max(0.0, awaited_s - begin_s), MAX_GAP_S), provenance

    def _starts(self, thread: Thread) -> list[int]:
        if thread.id in self.launched:
            return sorted({0, *thread.launches})
        starts = [0]
        for i, call in enumerate(thread.calls[:-1]):
            if _gap(thread.calls, i)[0] < ABSENCE_S or id(call) in self.joined_s:
                continue
            if any(tool.duration_s for tool in call.called.values()):
                continue
            self.repairs.add(
                "a pause of an hour or more: the rest of the session is a program of its own"
            )
            starts.append(i + 1)
        return starts

    def _fork(self, thread: Thread, run: int, started_s: float | None) -> Fork | None:
        """Return where the run that begins with a call was started."""
        launch = thread.launches.get(run)
        if launch is None or thread.id not in self.launched:
            return None
        parent, place = self.places[id(launch.call)]
        begin, k, end = self._segment(parent, place)
        joined = None
        if launch.awaited_by is not None:
            awaited_at = self.places.get(id(launch.awaited_by), (parent, -1))[1]
            if place <= awaited_at < end - 1:
                joined = awaited_at + 1 - begin
        ended_s = launch.call.end_s
        delay_s, provenance = 0.0, Provenance.INFERRED
        if ended_s is not None and started_s is not None:
            delay_s, provenance = max(0.0, started_s - ended_s), Provenance.MEASURED
        id_ = _program_id(parent.id, k)
        return Fork(id_, place - begin, round(min(delay_s, MAX_GAP_S), 3), joined, provenance)

    def _segment(self, thread: Thread, call: int) -> tuple[int, int, int]:
        """Return the first call, the number and the end of the program that contains a call."""
        starts = self.starts[thread.id]
        k = bisect_right(starts, call) - 1
        return starts[k], k, starts[k + 1] if k + 1 < len(starts) else len(thread.calls)

    def _kept(self, calls: Sequence[Call], i: int) -> int:
        """Return the number of tokens in call `i` that repeat the context of the previous call."""
        before, call = calls[i - 1], calls[i]
        most = most_kept(before, call)
        cached = min(call.cached or 0, most)
        if call.continues != -1:
            self.repairs.add("a prompt that does not continue the one before: history rewritten")
            common = 0
            if call.continues is not None:
                common = calls[call.continues].prompt + calls[call.continues].output
            return min(max(cached, common), most)
        if call.prompt > before.prompt:
            if call.cached is not None and cached < before.prompt / 2:
                self.repairs.add(
                    "a prompt that only grew, although little of it was in the provider's cache: "
                    "kept tokens inferred"
                )
            return kept_tokens(before, call, self.repairs)
        if cached or call.prompt < (1 - COUNTING_ERROR) * before.prompt:
            self.repairs.add(
                "a prompt shorter than the one before: only what the provider had cached is kept"
            )
            return cached
        self.repairs.add(COUNTS_DIFFER)
        return most


def _gap(calls: Sequence[Call], i: int) -> Gap:
    """Return the gap after a call of a program; none after the last one."""
    gap_s, provenance = calls[i].gap or (0.0, Provenance.MEASURED)
    return gap_s if i + 1 < len(calls) else 0.0, provenance


def _program_id(thread: str, k: int) -> str:
    return f"{thread}@{k + 1}" if k else thread


def _prefix_lengths(threads: Iterable[Thread]) -> dict[tuple[str, ...], int]:
    """Return the length of each system prompt: the fewest tokens that a first prompt with it had in
    the cache, if any, and at most the shortest prompt with it."""
    lengths: dict[tuple[str, ...], int] = {}
    with_system = [thread for thread in threads if thread.prefix_of]
    for thread in with_system:
        if cached := thread.calls[0].cached:
            lengths[thread.prefix_of] = min(cached, lengths.get(thread.prefix_of, cached))
    for thread in with_system:
        if thread.prefix_of in lengths:
            shortest = min(call.prompt for call in thread.calls)
            lengths[thread.prefix_of] = min(shortest, lengths[thread.prefix_of])
    return lengths
