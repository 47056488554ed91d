"""Sessions of GitHub Copilot: tool batches, pauses and the system prompt."""

from __future__ import annotations

import json
from typing import Any

from tests.sentences import each_mentions
from tests.traces.sample import Sample, at, json_lines
from traces import Program, Provenance
from traces.lenient import Repairs
from turnstile_formats import azure_copilot


def sample() -> Sample:
    def call(id: str, second: int, prompt: int) -> dict[str, Any]:
        return {
            "message_id": id, "timestamp": f"2026-06-01T00:00:{second:02}Z", "duration_ms": 1000.0,
            "model": "Model A", "result": "Success", "status_code": "OK",
            "tokens": {"total": prompt + 20, "prompt": prompt, "completion": 20, "cached": 64},
            "message_metadata": [{"type": "System", "role": "system", "sequenceId": 0,
                                  "token_len": 64}],
        }  # fmt: skip

    batch = {"timestamp": "2026-06-01T00:00:01Z", "duration_ms": 1500.0, "request_id": "m1",
             "function_calls": [{"name": "read_file", "status": 1, "duration_ms": 1400.0}],
             }  # fmt: skip
    a = {"session_id": "a", "date": "2026-06-01", "turns": [
        {"turn_id": "t", "llm_calls": [call("m1", 0, 100), call("m2", 3, 150)],
         "tool_batches": [batch]}]}  # fmt: skip
    b = {"session_id": "b", "date": "2026-06-01", "turns": [
        {"turn_id": "t", "llm_calls": [call("m3", 9, 100)], "tool_batches": []}]}  # fmt: skip
    return Sample({"copilot.jsonl": json_lines(a, b)}, (Provenance.MEASURED,))


SAMPLE = sample()


def copilot_call(id: str, start: float, prompt: int, **fields: Any) -> dict[str, Any]:
    return {
        "message_id": id, "timestamp": at(start), "duration_ms": 2000.0, "model": "Model A",
        "tokens": {"prompt": prompt, "completion": 10, "cached": 0}, **fields,
    }  # fmt: skip


def batch(id: str, duration_ms: float | None, *functions: tuple[str, float]) -> dict[str, Any]:
    calls = [{"name": name, "status": 1, "duration_ms": ms} for name, ms in functions]
    return {"request_id": id, "duration_ms": duration_ms, "function_calls": calls}


def copilot(*turns: dict[str, Any]) -> tuple[Program, list[str]]:
    repairs = Repairs()
    session = {"session_id": "s", "turns": list(turns)}
    (program,) = azure_copilot.load(json.dumps(session, indent=1).encode(), "f", repairs)
    return program, repairs.reasons()


def test_a_tool_batch_of_copilot_is_the_tool_gap_not_the_time_that_the_client_took() -> None:
    calls = [copilot_call("a", 0, 100), copilot_call("b", 9, 150)]
    batches = [batch("a", 1500.0, ("read_file", 900.0), ("grep", 1400.0)), batch("a", 500.0)]
    program, repairs = copilot({"llm_calls": calls, "tool_batches": batches})
    first = program.turns[0]
    assert first.tools == ("read_file", "grep")
    assert (first.tool_gap_s, first.gap_provenance) == (2.0, Provenance.MEASURED)
    assert repairs == []


def test_the_longest_function_stands_for_a_batch_without_duration() -> None:
    calls = [copilot_call("a", 0, 100), copilot_call("b", 9, 150)]
    batches = [batch("a", None, ("read_file", 900.0), ("grep", 1400.0))]
    program, repairs = copilot({"llm_calls": calls, "tool_batches": batches})
    assert (program.turns[0].tool_gap_s, program.turns[0].gap_provenance) == (1.4, "inferred")
    assert each_mentions(repairs, "tool batch without duration")


def test_the_time_between_turns_of_copilot_is_a_pause_of_the_user() -> None:
    program, repairs = copilot(
        {"llm_calls": [copilot_call("a", 0, 100)], "tool_batches": [batch("a", 500.0, ("ls", 1))]},
        {"llm_calls": [copilot_call("b", 50, 150)], "tool_batches": []},
    )
    assert (program.turns[0].tools, program.turns[0].tool_gap_s) == ((), 48.0)
    assert each_mentions(repairs, "tools after the last call")


def test_system_segments_of_copilot_are_the_shared_prefix() -> None:
    def segment(kind: str, index: int, length: int) -> dict[str, Any]:
        return {"type": kind, "role": kind.lower(), "sequenceId": index, "token_len": length}

    segments = [segment("UserMessage", 2, 9), segment("System", 0, 40), segment("System", 1, 20)]
    program, _ = copilot({"llm_calls": [copilot_call("a", 0, 100, message_metadata=segments)]})
    assert program.prefix is not None
    assert (program.prefix.id, program.prefix.tokens) == ("system:Model A:60", 60)


def test_a_session_of_copilot_that_is_repeated_counts_once() -> None:
    repairs = Repairs()
    session = {"session_id": "s", "turns": [{"llm_calls": [copilot_call("a", 0, 100)]}]}
    assert len(azure_copilot.load(json_lines(session, session), "f", repairs)) == 1
    assert each_mentions(repairs.reasons(), "id that was used before")
