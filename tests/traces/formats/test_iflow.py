"""iFlow CLI: lines like Claude Code's, with counts that may be 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.basics.errors import TraceRejected
from tests.sentences import each_mentions
from tests.traces.claude_code import Line, line, tool, user, written
from tests.traces.sample import Sample, json_lines
from traces import Provenance, read_traces
from traces.formats.iflow import load
from traces.lenient import Repairs

SHELL = tool("t", "run_shell_command", command="cd src && pytest -q")


def answer(uuid: str, parent: str, at_s: float, prompt: int, *blocks: Line, **counts: int) -> Line:
    usage = {"input_tokens": prompt, "output_tokens": prompt and 20, **counts}
    message = {"id": f"i{uuid}", "model": "glm-5", "content": list(blocks), "usage": usage}
    return line("assistant", uuid, parent, at_s, message=message)


def result(uuid: str, parent: str, at_s: float) -> Line:
    """Gemini CLI's form of a result, from which iFlow was made."""
    response = {"functionResponse": {"id": "t", "name": "run_shell_command"}}
    content = {"callId": "t", "responseParts": response}
    block = {"type": "tool_result", "tool_use_id": "t", "content": content}
    return user(uuid, parent, at_s, [block], toolUseResult={"status": "success"})


def session(id: str, *lines: Line) -> bytes:
    return json_lines(*({**each, "sessionId": f"session-{id}"} for each in lines))


LINES = (
    user("u", None, 0),
    answer("a", "u", 4, 1000, SHELL),
    result("r", "a", 9.5),
    answer("b", "r", 12, 1100, written("done")),
)
OTHER = session("2", user("v", None, 60), answer("c", "v", 64, 900, written("done")))
SAMPLE = Sample(
    {"session-1.jsonl": session("1", *LINES), "session-2.jsonl": OTHER},
    (Provenance.MEASURED_WITH_PERMISSION,),
    shares_prefix=False,
)


def test_a_session_has_the_counts_and_tool_times_of_its_lines(tmp_path: Path) -> None:
    (tmp_path / "session-1.jsonl").write_bytes(session("1", *LINES))
    read = read_traces(tmp_path)
    assert set(read.formats.values()) == {"iflow"}
    (program,) = read.programs
    assert [(turn.prompt_tokens, turn.output_tokens) for turn in program.turns] == [
        (1000, 20),
        (1100, 20),
    ]
    assert (program.turns[0].tools, program.turns[0].tool_gap_s) == (("cd", "pytest"), 5.5)
    assert program.turns[1].kept_tokens == 1020


def test_cached_tokens_are_part_of_the_prompt_tokens() -> None:
    repairs = Repairs()
    cached = answer("b", "r", 12, 1100, written("done"), cache_read_input_tokens=1000)
    (program,) = load(session("1", *LINES[:3], cached), "f", repairs)
    assert [turn.prompt_tokens for turn in program.turns] == [1000, 1100]
    assert repairs.reasons() == []


def test_counts_of_0_are_unknown() -> None:
    repairs = Repairs()
    lines = (LINES[0], answer("x", "u", 2, 0, written("hm")), *LINES[1:])
    (program,) = load(session("1", *lines), "f", repairs)
    assert [turn.prompt_tokens for turn in program.turns] == [1000, 1100]
    assert each_mentions(repairs.reasons(), "without token counts")


def test_a_session_without_counts_is_refused_with_what_is_missing() -> None:
    with pytest.raises(TraceRejected, match="no answer with token counts; record"):
        load(session("1", LINES[0], answer("a", "u", 4, 0, SHELL)), "f", Repairs())
