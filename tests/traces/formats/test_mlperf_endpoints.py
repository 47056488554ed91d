"""Agentic datasets of MLPerf endpoints: prompts from messages, delays as tool times."""

from __future__ import annotations

from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.sentences import mentions
from tests.traces import span_samples
from tests.traces.sample import Sample, json_lines
from traces import Program, Provenance
from traces.assumptions import Assumptions
from traces.lenient import Repairs
from turnstile_formats.mlperf_endpoints import load_with, sniff

SAMPLE = Sample({"a.jsonl": span_samples.mlperf_endpoints()}, (Provenance.MEASURED,))


CALL = {"type": "function", "function": {"name": "bash", "arguments": '{"command": "ls | wc"}'}}


def row(turn: int, role: str, id: str = "c", **fields: Any) -> dict[str, Any]:
    return {"conversation_id": id, "turn": turn, "role": role, **fields}


def tool(turn: int, characters: int, **fields: Any) -> dict[str, Any]:
    result = {"tool_call_id": "f:0", "content": "o" * characters}
    return row(turn, "tool", tool_results=[result], **fields)


def read(
    *rows: dict[str, Any], assumptions: Assumptions | None = None
) -> tuple[list[Program], list[str]]:
    data, repairs = json_lines(*rows), Repairs()
    assert sniff(data)
    return load_with(data, "file", repairs, assumptions or Assumptions()), repairs.reasons()


ASKED = row(1, "user", content="u" * 330, system="s" * 330)


def test_the_prompt_of_an_assistant_message_is_all_before_it() -> None:
    # 200 tokens of system prompt and question; reasoning and answer are 10 each, the result 20.
    answer = row(2, "assistant", reasoning_content="r" * 16, content="a" * 16)
    (program,), repairs = read(
        ASKED, answer, tool(3, 66, delay_seconds=1.5), row(4, "assistant", content="b" * 33)
    )
    lengths = [(t.prompt_tokens, t.output_tokens, t.kept_tokens) for t in program.turns]
    assert lengths == [(200, 10, 0), (230, 10, 210)]
    assert mentions(repairs[0], "without token counts", "1 token per 3.30")


def test_the_delay_of_tools_is_the_measured_gap() -> None:
    answer = row(2, "assistant", tool_calls=[CALL])
    (program,), _ = read(
        ASKED,
        answer,
        tool(3, 9, delay_seconds=1.5),
        tool(4, 9, delay_seconds=0.25),
        {**answer, "turn": 5},
    )
    assert program.turns[0].tool_gap_s == 1.75
    assert program.turns[0].gap_provenance is Provenance.MEASURED
    assert program.turns[0].tools == ("ls", "wc")


def test_a_result_without_a_delay_is_an_unknown_gap() -> None:
    rows = ASKED, row(2, "assistant", tool_calls=[CALL]), tool(3, 9), row(4, "assistant")
    with pytest.raises(TraceRejected, match="1 of 1 tool times not recorded"):
        read(*rows)
    (program,), _ = read(*rows, assumptions=Assumptions(gaps=lambda _id, tools: [3.0] * len(tools)))
    assert program.turns[0].gap_provenance is Provenance.SYNTHESISED


def test_conversations_may_be_interleaved_and_out_of_order() -> None:
    programs, _ = read(
        row(2, "assistant", "d", content="x"),
        row(2, "assistant", "c", content="x"),
        row(1, "user", "c", content="u" * 330),
        row(1, "user", "d", content="u" * 33),
    )
    assert {p.id: p.turns[0].prompt_tokens for p in programs} == {"c": 100, "d": 10}


def test_the_system_prompt_and_the_tools_are_a_prefix() -> None:
    (program,), _ = read(ASKED, row(2, "assistant", content="x"))
    assert program.prefix is not None
    assert program.prefix.tokens == 100


def test_a_file_without_assistant_messages_is_refused() -> None:
    with pytest.raises(TraceRejected, match="no assistant message"):
        read(ASKED)
