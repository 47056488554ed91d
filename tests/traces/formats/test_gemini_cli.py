"""Gemini CLI: what a session's messages say of its calls and gaps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.traces.claude_code import iso
from tests.traces.sample import Sample, json_lines
from traces import Program, Provenance
from traces.check import check
from traces.formats.gemini_cli import load, sniff
from traces.lenient import Repairs


def sample() -> Sample:
    def session(id: str, *messages: dict[str, Any]) -> bytes:
        head = {"sessionId": id, "projectHash": "0" * 8, "startTime": "2026-01-01T00:00:00Z"}
        user = {"id": "u", "timestamp": "2026-01-01T00:00:01Z", "type": "user", "content": "fix it"}
        patch = {"$set": {"lastUpdated": "2026-01-01T00:00:01Z"}}
        return json_lines(head, user, patch, *messages)

    def answer(n: int, second: int, *calls: dict[str, Any]) -> dict[str, Any]:
        counts = {"input": 100 + 50 * n, "output": 20, "cached": 64, "thoughts": 0, "tool": 0}
        return {"id": f"g{n}", "timestamp": f"2026-01-01T00:00:0{second}Z", "type": "gemini",
                "content": "on", "model": "gemini-x", "tokens": counts,
                "toolCalls": list(calls)}  # fmt: skip

    call = {"name": "run_shell_command", "args": {"command": "ls"},
            "timestamp": "2026-01-01T00:00:05.500Z"}  # fmt: skip
    return Sample(
        {
            "session-a.jsonl": session("a", answer(0, 4, call), answer(1, 9)),
            "session-b.jsonl": session("b", answer(0, 4)),
        },
        (Provenance.MEASURED_WITH_PERMISSION,),
    )


SAMPLE = sample()


Message = dict[str, Any]
HEAD: Message = {"sessionId": "s", "projectHash": "0"}


def user(id: str, at_s: float) -> Message:
    return {"id": id, "timestamp": iso(at_s), "type": "user", "content": [{"text": "go"}]}


def answer(id: str, at_s: float, prompt: int, *tools: Message, **counts: int) -> Message:
    tokens = {"input": prompt, "output": 20, "cached": 0, "thoughts": 0, "tool": 0, **counts}
    return {"id": id, "timestamp": iso(at_s), "type": "gemini", "content": "on", "tokens": tokens,
            "toolCalls": list(tools), "model": "gemini-x"}  # fmt: skip


def tool(at_s: float, name: str = "read_file", **given: str) -> Message:
    return {"id": "t", "name": name, "args": given, "timestamp": iso(at_s), "status": "success"}


MESSAGES = [
    user("u", 0),
    answer("a", 4, 100, tool(5), tool(7)),
    answer("b", 9, 150, cached=100, thoughts=30, tool=10),
    user("v", 69),
    answer("c", 75, 300),
]


def read(data: bytes) -> tuple[Program, list[str]]:
    repairs = Repairs()
    (program,) = load(data, "session-1", repairs)
    check([program])
    return program, repairs.reasons()


@pytest.mark.parametrize(
    "data",
    [json.dumps({**HEAD, "messages": MESSAGES}, indent=1).encode(), json_lines(HEAD, *MESSAGES)],
)
def test_both_formats_give_the_same_program(data: bytes) -> None:
    assert sniff(data)
    program, _ = read(data)
    assert program.id == "s"
    counts = [(t.prompt_tokens, t.output_tokens, t.kept_tokens) for t in program.turns]
    # Thoughts are generated, and not repeated in the next prompt.
    assert counts == [(100, 20, 0), (160, 50, 120), (300, 20, 160)]
    gaps = [(turn.tools, turn.tool_gap_s) for turn in program.turns]
    assert gaps == [(("read_file", "read_file"), 3.0), ((), 60.0), ((), 0.0)]
    assert {turn.gap_provenance for turn in program.turns} == {Provenance.MEASURED}


def test_the_last_version_of_a_message_counts_and_patches_change_the_session() -> None:
    first = answer("a", 4, 100, output=1)
    program, repairs = read(
        json_lines(HEAD, user("u", 0), first, {"$set": {"sessionId": "t"}}, MESSAGES[1])
    )
    assert program.id == "t"
    assert [turn.output_tokens for turn in program.turns] == [20]
    assert repairs == ["a message that is written again: its last version counts"]


def test_a_patch_can_add_messages() -> None:
    program, _ = read(json_lines(HEAD, {"$set": {"messages": MESSAGES}}))
    assert len(program.turns) == 3


def test_a_shell_command_counts_as_its_programs() -> None:
    ran = tool(5, "run_shell_command", command="ls /home/ada | wc -l")
    assert read(json_lines(HEAD, answer("a", 4, 100, ran)))[0].turns[0].tools == ("ls", "wc")


def test_an_answer_without_counts_is_left_out() -> None:
    uncounted = {**answer("a", 4, 100), "tokens": None}
    program, repairs = read(json_lines(HEAD, uncounted, *MESSAGES[2:]))
    assert len(program.turns) == 2
    assert "an answer without token counts: left out" in repairs


def test_a_session_without_counts_is_refused() -> None:
    with pytest.raises(TraceRejected, match="no message of the model with token counts"):
        read(json_lines(HEAD, user("u", 0)))
