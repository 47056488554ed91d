"""Workloads of LLMServingSim."""

from __future__ import annotations

from typing import Any

from tests.traces.sample import Sample, json_lines, load
from traces import Provenance
from turnstile_formats import llmservingsim


def sample() -> Sample:
    def request(prompt: list[int], **fields: Any) -> dict[str, Any]:
        return {"input_toks": len(prompt), "output_toks": 20, "input_tok_ids": prompt, **fields}

    first, second = list(range(40)), [*range(32), *range(90, 98)]
    agentic = {"session_id": "a", "arrival_time_ns": 0, "sub_requests": [
        request(first, tool_duration_ns=1_500_000_000),
        request([*first, *range(200, 230)], tool_duration_ns=0)]}  # fmt: skip
    lines = json_lines(agentic, request(second, arrival_time_ns=1_000_000_000))
    return Sample({"workload.jsonl": lines}, (Provenance.UNSTATED,))


SAMPLE = sample()


def test_the_next_sub_request_starts_when_the_tool_has_ended() -> None:
    (program,), _ = load(
        llmservingsim,
        {"session_id": "a", "arrival_time_ns": 5_000_000_000, "sub_requests": [
            {"input_toks": 100, "output_toks": 10, "tool_duration_ns": 1_500_000_000},
            {"input_toks": 150, "output_toks": 10, "tool_duration_ns": 0}]},
    )  # fmt: skip
    assert program.recorded_start_s == 5.0
    assert (program.turns[0].tool_gap_s, program.turns[1].kept_tokens) == (1.5, 110)


def test_recorded_token_ids_share_blocks_of_16() -> None:
    prompts = [list(range(40)), [*range(35), 99, 98]]
    programs, _ = load(
        llmservingsim,
        *({"input_toks": len(ids), "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": ids}
          for ids in prompts),
    )  # fmt: skip
    assert [program.turns[0].prefixes[-1].tokens for program in programs] == [32, 32]
