"""Programs of calls with recorded times: AgentInfer, GitHub Copilot, TraceLab and Dynamo."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from traces import Fork, Program, Provenance
from traces.formats import dynamo_requests
from traces.lenient import Repairs
from turnstile_formats import agentinfer, azure_copilot, tracelab


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def at(second: float) -> str:
    return f"2026-06-01T00:{int(second // 60):02}:{second % 60:06.3f}+00:00"


def request(
    start: float, end: float | None, prompt: int, output: int = 10, **fields: Any
) -> dict[str, Any]:
    return {
        "session_id": "s", "actor_id": "lead", "status": "success", "started_at": at(start),
        "finished_at": None if end is None else at(end), "input_tokens": prompt,
        "output_tokens": output, "cached_tokens": None, **fields,
    }  # fmt: skip


def infer(*rows: dict[str, Any]) -> tuple[list[Program], list[str]]:
    repairs = Repairs()
    return agentinfer.load(lines(*rows), "file", repairs), repairs.reasons()


def test_the_gap_lasts_from_a_response_to_the_next_request() -> None:
    (program,), repairs = infer(request(0, 2, 100), request(5, 6, 150))
    first, second = program.turns
    assert (first.tool_gap_s, first.gap_provenance) == (3.0, Provenance.MEASURED)
    assert (first.tools, second.tools) == (("tool_use",), ())
    assert repairs == []


@pytest.mark.parametrize(
    ("prompt", "cached", "kept"),
    [
        (150, None, 110),  # longer than the context of 100 + 10
        (105, None, 100),  # longer than the prompt, but not with its output
        (105, 104, 104),  # but more was cached
        (90, 64, 64),  # shorter: what was cached
        (90, None, 0),
    ],
)
def test_a_growing_prompt_repeats_the_previous_one(
    prompt: int, cached: int | None, kept: int
) -> None:
    (program,), repairs = infer(request(0, 2, 100), request(5, 6, prompt, cached_tokens=cached))
    assert program.turns[1].kept_tokens == kept
    assert bool(repairs) == (kept == 0)


def test_a_sub_agent_forks_after_the_last_response_and_joins_before_the_next_request() -> None:
    child = {"actor_id": "x"}
    (parent, sub), _ = infer(
        request(0, 2, 100), request(3, 4, 80, **child), request(5, 9, 120, **child),
        request(11, 12, 150),
    )  # fmt: skip
    assert sub.fork == Fork("s", 0, 1.0, 1, Provenance.MEASURED)
    assert parent.turns[0].tool_gap_s == 2.0  # from the sub-agent's end at 9 s
    assert (sub.id, sub.turns[0].tool_gap_s) == ("s/x", 1.0)


def test_a_parent_does_not_wait_for_a_sub_agent_that_outlives_its_next_request() -> None:
    (parent, sub), repairs = infer(
        request(0, 2, 100), request(3, 30, 80, actor_id="x"), request(11, 12, 150)
    )
    assert sub.fork == Fork("s", 0, 1.0, None, Provenance.MEASURED)
    assert parent.turns[0].tool_gap_s == 9.0
    assert repairs == ["a sub-agent that runs in parallel with its parent, which does not wait"]


def test_calls_that_overlap_become_a_separate_sub_agent() -> None:
    (main, other), repairs = infer(
        request(0, 2, 100), request(3, 8, 150), request(4, 6, 20), request(9, 10, 200)
    )
    assert [turn.prompt_tokens for turn in main.turns] == [100, 150, 200]
    assert (other.id, other.fork) == ("s~1", Fork("s", 0, 2.0, None, Provenance.MEASURED))
    assert repairs[0] == "calls of one agent that overlap: made a separate sub-agent"


def test_a_call_without_its_end_is_estimated_and_its_gap_inferred() -> None:
    # 1.27 + 0.0149 · 100 + 1.47e-5 · 100,000 = 4.23 s of 20 s.
    (program,), repairs = infer(request(0, None, 100_000, 100), request(20, 21, 100_200))
    assert program.turns[0].tool_gap_s == pytest.approx(15.77)
    assert program.turns[0].gap_provenance is Provenance.INFERRED
    assert repairs == ["a call without its end or duration: estimated, its tool gap is inferred"]


def test_an_estimated_call_ends_before_the_next_one_starts() -> None:
    (program,), _ = infer(request(0, None, 100_000, 100), request(1, None, 100_200))
    assert program.turns[0].tool_gap_s == 0.0


def test_requests_out_of_order_are_sorted_and_failed_ones_left_out() -> None:
    (program,), repairs = infer(
        request(5, 6, 150), request(0, 2, 100), request(7, 8, 9, status="failed")
    )
    assert [turn.prompt_tokens for turn in program.turns] == [100, 150]
    assert repairs == ["a request that failed: left out", "calls not in order of time: sorted"]


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
    assert repairs == ["a tool batch without duration: its longest function's is used"]


def test_the_time_between_turns_of_copilot_is_a_pause_of_the_user() -> None:
    program, repairs = copilot(
        {"llm_calls": [copilot_call("a", 0, 100)], "tool_batches": [batch("a", 500.0, ("ls", 1))]},
        {"llm_calls": [copilot_call("b", 50, 150)], "tool_batches": []},
    )
    assert (program.turns[0].tools, program.turns[0].tool_gap_s) == ((), 48.0)
    assert repairs == ["tools after the last call of a turn: counted as a part of the pause"]


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
    assert len(azure_copilot.load(lines(session, session), "f", repairs)) == 1
    assert repairs.reasons() == ["a session with an id that was used before: left out"]


def round_(index: int, start: float, prompt: int, **fields: Any) -> dict[str, Any]:
    events = [("user_message", start), ("text", start + 2)]
    return {
        "provider": "codex", "project": "p", "session_id": "s", "round_index": index,
        "round_id": f"r{index}", "input_tokens_total": prompt, "prefix_tokens": 50,
        "output_tokens": 10, "tools": [],
        "timing_events": [{"event_type": kind, "timestamp": at(time)} for kind, time in events],
        **fields,
    }  # fmt: skip


def test_the_gap_of_a_round_ends_with_the_last_result_of_its_parallel_tools() -> None:
    tools = [
        {"tool_name": "Bash", "emitted_at": at(1), "result_at": at(4)},
        {"tool_name": "Read", "emitted_at": at(2), "tool_wall_latency_ms": 5000},
    ]
    data = lines(round_(0, 0, 100, tools=tools), round_(1, 20, 150))
    (program,) = tracelab.load(data, "f", Repairs())
    assert program.turns[0].tools == ("Bash", "Read")
    assert program.turns[0].tool_gap_s == 5.0  # the response ended at 2 s, Read at 7 s


def test_a_round_that_was_recorded_twice_counts_once() -> None:
    repairs = Repairs()
    (program,) = tracelab.load(lines(round_(0, 0, 100), round_(0, 0, 100)), "f", repairs)
    assert len(program.turns) == 1
    assert repairs.reasons() == ["a round that was recorded before: left out"]


def test_reasoning_is_not_repeated_in_the_next_prompt() -> None:
    data = lines(round_(0, 0, 100, reasoning_output_tokens=5), round_(1, 20, 150))
    (program,) = tracelab.load(data, "f", Repairs())
    assert program.turns[1].kept_tokens == 100


def test_sessions_of_one_project_share_the_least_that_their_first_rounds_found_cached() -> None:
    data = lines(round_(0, 0, 100), round_(0, 5, 90, session_id="t", prefix_tokens=70))
    one, other = tracelab.load(data, "f", Repairs())
    assert one.prefix == other.prefix
    assert one.prefix is not None
    assert one.prefix.tokens == 50


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
    return dynamo_requests.load(lines(*rows), "f", repairs), repairs.reasons()


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
    assert repairs[0].startswith("a request without a session: a program of one turn")


def test_a_sub_agent_whose_parent_is_missing_becomes_a_separate_program() -> None:
    (program,), repairs = dynamo(ended(0, 30, [1, 2, 3], session_id="a", parent_session_id="gone"))
    assert program.fork is None
    assert repairs == ["a sub-agent whose parent is not in the file: made a separate program"]


@pytest.mark.parametrize("loader", [agentinfer, azure_copilot, tracelab, dynamo_requests])
def test_a_file_without_a_usable_call_is_refused(loader: Any) -> None:
    with pytest.raises(TraceRejected, match="no "):
        loader.load(lines({"session_id": "s"}), "f", Repairs())
