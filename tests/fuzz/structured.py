"""Valid sessions of agents, drawn from a model of their formats and written as agents write them:
with lines repeated, results of parallel tools in any order, copies in other files, and cut off at
any line. Whatever the file looks like, the calls, tokens and gaps that are read are those drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from tests.fuzz.target import Target
from tests.traces import claude_code as claude
from tests.traces.formats import test_codex as codex
from tests.traces.formats import test_gemini_cli as gemini
from tests.traces.sample import json_lines
from traces import Program, Provenance
from traces.formats import claude_code, gemini_cli
from traces.formats import codex as codex_format
from traces.formats.shared.linked import MARKER
from traces.laws import Law
from traces.lenient import Repairs, moment

Line = dict[str, Any]
Files = dict[str, bytes]


@dataclass(frozen=True)
class Tool:
    id: str
    called_s: float
    ended_s: float


@dataclass(frozen=True)
class Drawn:
    """A call of the model."""

    prompt: int
    cached: int
    output: int
    end_s: float
    tools: tuple[Tool, ...]
    asked_s: float
    """When a person's message follows, if it calls no tools."""

    @property
    def gap_s(self) -> float:
        """From the answer to the last result of its tools, or to the message."""
        ended_s = max((tool.ended_s for tool in self.tools), default=self.asked_s)
        return round(ended_s - self.end_s, 3)


def draw(random: Random) -> list[Drawn]:
    """Return a session in which tools or a message follow each call, and prompts grow."""
    calls: list[Drawn] = []
    prompt, now_s = random.randint(50, 3000), 10.0
    for number in range(random.randint(1, 6)):
        cached = random.randint(calls[-1].prompt * 3 // 4, calls[-1].prompt) if calls else 0
        output = random.randint(1, 400)
        end_s = now_s = round(now_s + random.uniform(0.5, 60), 3)
        tools = []
        for index in range(random.randint(0, 3)):
            ended_s = round(end_s + random.uniform(0.1, 90), 3)
            tools.append(Tool(f"t{number}.{index}", end_s, ended_s))
            now_s = max(now_s, ended_s)
        if not tools:
            now_s = round(end_s + random.uniform(1.5, 600), 3)
        calls.append(Drawn(prompt, cached, output, end_s, tuple(tools), now_s))
        prompt += output + random.randint(1, 500)
    return calls


def results(call: Drawn, random: Random) -> list[Tool]:
    """Return the tools in the order in which their results are written."""
    tools = sorted(call.tools, key=lambda tool: tool.ended_s)
    return tools if random.random() < 0.5 else random.sample(tools, len(tools))


# Each writer returns the lines of a session, and for each line the number of calls with counts up
# to it. The last call has no tools.
Written = tuple[list[Line], list[int]]


def claude_lines(calls: Sequence[Drawn], random: Random) -> Written:
    lines, counted, parent = [claude.user("u", None, 1)], [0], "u"
    for number, call in enumerate(calls):
        counts = {"new": call.prompt - call.cached, "cached": call.cached, "output": call.output}
        tools = call.tools if number + 1 < len(calls) else ()
        blocks = [claude.written("on"), *(claude.tool(tool.id) for tool in tools)]
        answers = [[block] for block in blocks] if random.random() < 0.7 else [blocks]
        stop = "tool_use" if tools else "end_turn"
        written = []
        for index, part in enumerate(answers):
            uuid = f"a{number}.{index}"
            fields: Line = {**counts, "stop": stop, "requestId": f"r{number}"}
            line = claude.answer(uuid, parent, call.end_s, f"m{number}", *part, **fields)
            written.append(line)
            parent = uuid
        for tool in results(call, random) if tools else ():
            uuid = f"r{tool.id}"
            written.append(claude.result(uuid, parent, tool.ended_s, tool.id))
            parent = uuid
        if not call.tools:
            written.append(claude.user(f"u{number}", parent, call.asked_s))
            parent = f"u{number}"
        lines += written
        counted += [number + 1] * len(written)
    return lines, counted


def codex_lines(calls: Sequence[Drawn], random: Random) -> Written:
    lines, counted, count = [codex.meta("a"), codex.asked(1)], [0, 0], codex.Counter()
    for number, call in enumerate(calls):
        tools = call.tools if number + 1 < len(calls) else ()
        items = [codex.said(call.end_s), *(codex.called(t.called_s, t.id) for t in tools)]
        counts = count(call.end_s, call.prompt, call.output, call.cached)
        lines += [*items, counts]
        counted += [*[number] * len(items), number + 1]
        for tool in results(call, random) if tools else ():
            lines.append(codex.output(tool.ended_s, tool.id))
            counted.append(number + 1)
        if not call.tools:
            lines.append(codex.asked(call.asked_s))
            counted.append(number + 1)
    return lines, counted


def gemini_lines(calls: Sequence[Drawn], random: Random) -> Written:
    lines, counted = [gemini.HEAD, gemini.user("u", 1)], [0, 0]
    for number, call in enumerate(calls):
        tools = results(call, random) if number + 1 < len(calls) else ()
        given = [{**gemini.tool(tool.ended_s), "id": tool.id} for tool in tools]
        counts = {"output": call.output, "cached": call.cached}
        lines.append(gemini.answer(f"g{number}", call.end_s, call.prompt, *given, **counts))
        counted.append(number + 1)
        if not call.tools:
            lines.append(gemini.user(f"u{number}", call.asked_s))
            counted.append(number + 1)
    return lines, counted


def repeated(lines: Sequence[Line], random: Random) -> Iterator[Line]:
    """Yield the lines, some of them twice, as clients write them that send again."""
    for line in lines:
        yield line
        if random.random() < 0.1:
            yield line


def one_file(lines: Sequence[Line], random: Random) -> list[list[Line]]:
    return [list(repeated(lines, random))]


def resumed(lines: Sequence[Line], random: Random) -> list[list[Line]]:
    """Return a session that another file continues, with a copy of all that was in the first."""
    end = random.randint(1, len(lines))
    rest = [{**line, "sessionId": "s2"} for line in lines]
    return [list(lines[:end]), list(repeated(rest, random))]


def forked(lines: Sequence[Line], random: Random) -> list[list[Line]]:
    """Return a rollout and its fork, which begins with a copy of it, up to a person's message, and
    goes on alone."""
    asked = (i + 1 for i, line in enumerate(lines) if line["payload"].get("role") == "user")
    end = random.choice([*asked, len(lines)])
    at_s = max(moment(line["timestamp"]) or 0.0 for line in lines[:end]) - claude.START_S + 0.01
    copied = [codex.meta("b", at_s, forked_from_id="a"), *lines[:end]]
    return [list(lines[:end]), [*copied, *repeated(lines[end:], random)]]


def cut(data: bytes, random: Random) -> bytes:
    """Return a file whose last line was not written whole, as after a crash."""
    return data + b'{"type": "assistant", "uuid"\n' if random.random() < 0.3 else data


Writer = Callable[[Sequence[Drawn], Random], Written]
Load = Callable[[bytes, str, Repairs], list[Program]]
Spread = Callable[[Sequence[Line], Random], list[list[Line]]]


def check(write: Writer, load: Load, spreads: Sequence[Spread], seed: bytes) -> bool:
    random = Random(seed)
    calls = draw(random)
    lines, counted = write(calls, random)
    if random.random() < 0.3:
        end = random.randint(1, len(lines))
        lines, counted = lines[:end], counted[:end]
    calls = calls[: counted[-1]]
    if not calls:
        return False
    parts = random.choice(spreads)(lines, random)
    data = b"".join(
        json_lines({MARKER: f"session-{number}"}) + cut(json_lines(*part), random)
        for number, part in enumerate(parts)
    )
    repairs = Repairs()
    _compare(load(data, "session-0", repairs), calls, repairs)
    return True


def _compare(programs: Sequence[Program], calls: Sequence[Drawn], repairs: Repairs) -> None:
    """A session that continues another is a program of its own, with the calls that are new."""
    found = [(turn, turn is not p.turns[-1]) for p in programs for turn in p.turns]
    lengths = [(turn.prompt_tokens, turn.output_tokens) for turn, _ in found]
    drawn = [(call.prompt, call.output) for call in calls]
    notes = repairs.reasons()
    assert lengths == drawn, f"{lengths} instead of {drawn}; {notes}"
    for (turn, has_gap), call in zip(found, calls, strict=True):
        if has_gap:
            assert turn.tool_gap_s == call.gap_s, f"{turn} of {call}; {notes}"
            assert turn.gap_provenance is not Provenance.INFERRED, f"{turn}; {notes}"
    failed = {law: n for law, n in repairs.laws.failed.items() if n}
    assert not failed, f"{failed}; {notes}"
    assert repairs.laws.checked[Law.CACHED] == len(calls)


def _seed(random: Random) -> bytes:
    return random.randbytes(8)


def _target(name: str, write: Writer, load: Load, *spreads: Spread) -> Target:
    return Target(f"session of {name}", _seed, partial(check, write, load, spreads), 1)


TARGETS = [
    _target("claude-code", claude_lines, claude_code.load, one_file, resumed),
    _target("codex", codex_lines, codex_format.load, one_file, forked),
    _target("gemini-cli", gemini_lines, gemini_cli.load, one_file),
]
