"""Dynamo's request traces: hashes of blocks and spans of tools."""

from __future__ import annotations

from typing import Any

from tests.sentences import each_mentions, mentions
from tests.traces.sample import Sample, json_lines
from traces import Program, Provenance
from traces.formats import dynamo_requests
from traces.lenient import Repairs


def sample() -> Sample:
    def ended(session: str, at_ms: int, prompt: int, hashes: list[int]) -> dict[str, Any]:
        replay = {"trace_block_size": 32, "input_length": prompt, "input_sequence_hashes": hashes}
        return {
            "schema": "dynamo.request.trace.v1", "event_type": "request_end",
            "event_time_unix_ms": at_ms + 1000, "agent_context": {"session_id": session},
            "request": {"request_id": f"{session}{at_ms}", "output_tokens": 20,
                        "request_received_ms": at_ms, "total_time_ms": 1000, "replay": replay},
        }  # fmt: skip

    big = 2**63 + 5
    lines = json_lines(
        ended("a", 0, 100, [big, 2, 3, 4]),
        ended("b", 500, 100, [big, 2, 9, 9]),
        ended("a", 2500, 150, [big, 2, 3, 5, 6]),
    )
    return Sample({"dynamo.jsonl": lines}, (Provenance.MEASURED,))


SAMPLE = sample()


def ended(start: int, prompt: int, hashes: list[int] | None, **context: str) -> dict[str, Any]:
    replay = {"trace_block_size": 10, "input_length": prompt, "input_sequence_hashes": hashes}
    return {
        "schema": "dynamo.request.trace.v1", "event_type": "request_end",
        "event_time_unix_ms": start + 1000, "agent_context": context,
        "request": {"output_tokens": 5, "request_received_ms": start, "total_time_ms": 1000,
                    "replay": replay if hashes else {}, "input_tokens": prompt},
    }  # fmt: skip


def dynamo(*rows: dict[str, Any]) -> tuple[list[Program], list[str]]:
    repairs = Repairs()
    return dynamo_requests.load(json_lines(*rows), "f", repairs), repairs.reasons()


def test_hashes_of_64_bits_are_compared_exactly() -> None:
    high = 2**63
    (program,), _ = dynamo(
        ended(0, 30, [high, high + 1, 3], session_id="a"),
        ended(2000, 40, [high, high + 2, 3, 4], session_id="a"),
    )
    assert program.turns[1].kept_tokens == 10


def test_requests_of_dynamo_without_hashes_keep_what_their_lengths_imply() -> None:
    (program,), _ = dynamo(
        ended(0, 30, None, session_id="a"), ended(2000, 40, None, session_id="a")
    )
    assert program.turns[1].kept_tokens == 35


def test_tool_spans_of_dynamo_name_the_tools_of_the_call_before_them() -> None:
    tool = {
        "event_type": "tool_end", "agent_context": {"session_id": "a"},
        "tool": {"tool_class": "bash", "started_at_unix_ms": 1100, "ended_at_unix_ms": 1900},
    }  # fmt: skip
    (program,), _ = dynamo(
        ended(0, 30, [1, 2, 3], session_id="a"), tool, ended(2000, 40, [1, 2, 3], session_id="a")
    )
    assert (program.turns[0].tools, program.turns[0].tool_gap_s) == (("bash",), 1.0)


def test_requests_of_dynamo_without_a_session_are_single_turns() -> None:
    programs, repairs = dynamo(ended(0, 30, [1, 2, 3]), ended(1, 30, [1, 2, 4]))
    assert [len(program.turns) for program in programs] == [1, 1]
    assert programs[0].turns[0].prefixes[0].tokens == 20
    assert mentions(repairs[0], "without a session")


def test_a_sub_agent_whose_parent_is_missing_becomes_a_separate_program() -> None:
    (program,), repairs = dynamo(ended(0, 30, [1, 2, 3], session_id="a", parent_session_id="gone"))
    assert program.fork is None
    assert each_mentions(repairs, "parent is not in the file")
