"""Rounds of TraceLab."""

from __future__ import annotations

from typing import Any

from tests.sentences import each_mentions
from tests.traces.sample import Sample, at, json_lines
from traces import Provenance
from traces.lenient import Repairs
from turnstile_formats import tracelab


def sample() -> Sample:
    def round_(session: str, index: int, second: int, prompt: int, **fields: Any) -> dict[str, Any]:
        def event(kind: str, at: int) -> dict[str, Any]:
            return {"event_type": kind, "timestamp": f"2026-06-01T00:00:{at:02}.000Z"}

        return {
            "provider": "claude", "project": "p", "session_id": session, "round_index": index,
            "round_id": f"{session}-{index}", "model": "m", "input_tokens_total": prompt,
            "prefix_tokens": 64, "newly_append_tokens": prompt - 64, "output_tokens": 20,
            "timing_events": [event("user_message", second), event("text", second + 2)],
            "tools": [], **fields,
        }  # fmt: skip

    tool = {"tool_name": "Bash", "emitted_at": "2026-06-01T00:00:02.000Z",
            "result_at": "2026-06-01T00:00:03.500Z", "tool_wall_latency_ms": 1500}  # fmt: skip
    lines = json_lines(
        round_("a", 0, 0, 100, tools=[tool]), round_("b", 0, 1, 100), round_("a", 1, 4, 150)
    )
    return Sample({"round_trace.jsonl": lines}, (Provenance.MEASURED_WITH_PERMISSION,))


SAMPLE = sample()


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
    data = json_lines(round_(0, 0, 100, tools=tools), round_(1, 20, 150))
    (program,) = tracelab.load(data, "f", Repairs())
    assert program.turns[0].tools == ("Bash", "Read")
    assert program.turns[0].tool_gap_s == 5.0  # the response ended at 2 s, Read at 7 s


def test_a_round_that_was_recorded_twice_counts_once() -> None:
    repairs = Repairs()
    (program,) = tracelab.load(json_lines(round_(0, 0, 100), round_(0, 0, 100)), "f", repairs)
    assert len(program.turns) == 1
    assert each_mentions(repairs.reasons(), "round that was recorded before")


def test_reasoning_is_not_repeated_in_the_next_prompt() -> None:
    data = json_lines(round_(0, 0, 100, reasoning_output_tokens=5), round_(1, 20, 150))
    (program,) = tracelab.load(data, "f", Repairs())
    assert program.turns[1].kept_tokens == 100


def test_sessions_of_one_project_share_the_least_that_their_first_rounds_found_cached() -> None:
    data = json_lines(round_(0, 0, 100), round_(0, 5, 90, session_id="t", prefix_tokens=70))
    one, other = tracelab.load(data, "f", Repairs())
    assert one.prefix == other.prefix
    assert one.prefix is not None
    assert one.prefix.tokens == 50
