"""Requests of AgentInfer: gaps, sub-agents and overlapping calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sentences import each_mentions, mentions
from tests.traces.sample import Sample, at, json_lines
from traces import Fork, Program, Provenance
from traces.lenient import Repairs
from turnstile_formats import agentinfer


def sample() -> Sample:
    def request(session: str, actor: str, second: int, prompt: int) -> dict[str, Any]:
        return {
            "schema_version": "1", "request_id": f"{session}{second}", "session_id": session,
            "actor_id": actor, "actor_role": actor,
            "started_at": f"2026-06-01T00:00:{second:02}+00:00",
            "finished_at": f"2026-06-01T00:00:{second + 1:02}+00:00", "status": "success",
            "input_tokens": prompt, "output_tokens": 20, "cached_tokens": None,
        }  # fmt: skip

    lines = json_lines(
        request("s", "lead", 0, 100), request("s", "x1", 2, 80), request("s", "lead", 5, 150)
    )
    return Sample({"requests.jsonl": lines}, (Provenance.MEASURED,), shares_prefix=False)


SAMPLE = sample()


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
    return agentinfer.load(json_lines(*rows), "file", repairs), repairs.reasons()


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
    part = "a prompt grew by 5 tokens after an answer of 10, not all of which it repeats"
    nothing = "a prompt that does not grow: nothing of the previous one counts as kept"
    assert repairs == {105: [part], 0: [nothing]}.get(kept and prompt, [])


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
    (parent, x, y), repairs = infer(
        request(0, 2, 100), request(3, 30, 80, actor_id="x"), request(4, 30, 80, actor_id="y"),
        request(11, 12, 150),
    )  # fmt: skip
    assert x.fork == Fork("s", 0, 1.0, None, Provenance.MEASURED)
    assert y.fork == Fork("s", 0, 2.0, None, Provenance.MEASURED)
    assert parent.turns[0].tool_gap_s == 9.0
    assert each_mentions(repairs, "in parallel with its parent")
    assert repairs[0].endswith("(2 times)")


def test_calls_that_overlap_become_a_separate_sub_agent() -> None:
    (main, other), repairs = infer(
        request(0, 2, 100), request(3, 8, 150), request(4, 6, 20), request(9, 10, 200)
    )
    assert [turn.prompt_tokens for turn in main.turns] == [100, 150, 200]
    assert (other.id, other.fork) == ("s~1", Fork("s", 0, 2.0, None, Provenance.MEASURED))
    assert mentions(repairs[0], "calls of one agent that overlap")


def test_a_call_without_its_end_is_estimated_and_its_gap_inferred() -> None:
    # 1.27 + 0.0149 · 100 + 1.47e-5 · 100,000 = 4.23 s of 20 s.
    (program,), repairs = infer(request(0, None, 100_000, 100), request(20, 21, 100_200))
    assert program.turns[0].tool_gap_s == pytest.approx(15.77)
    assert program.turns[0].gap_provenance is Provenance.INFERRED
    assert each_mentions(repairs, "without its end or duration")


def test_an_estimated_call_ends_before_the_next_one_starts() -> None:
    (program,), _ = infer(request(0, None, 100_000, 100), request(1, None, 100_200))
    assert program.turns[0].tool_gap_s == 0.0


def test_requests_out_of_order_are_sorted_and_failed_ones_left_out() -> None:
    (program,), repairs = infer(
        request(5, 6, 150), request(0, 2, 100), request(7, 8, 9, status="failed")
    )
    assert [turn.prompt_tokens for turn in program.turns] == [100, 150]
    assert each_mentions(repairs, "request that failed", "not in order of time")
