"""Texts of LMCache's agent traces: inferred lengths and what they share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.traces.sample import Sample, json_lines, load
from traces import Provenance
from turnstile_formats import lmcache_agent


def sample() -> Sample:
    def call(session: str, at_us: int, prompt: str) -> dict[str, Any]:
        return {"timestamp": 1_760_000_000_000_000 + at_us, "input": prompt,
                "output": "Let me look at the file.", "session_id": session}  # fmt: skip

    opening = "You are an agent with tools. " * 10
    lines = json_lines(
        call("a", 9_000_000, f"{opening} Fix it. Let me look at the file. It has an error."),
        call("a", 0, f"{opening} Fix it."),
        call("b", 1_000_000, f"{opening} Test it."),
    )
    return Sample({"calls.jsonl": lines}, (Provenance.INFERRED,))


SAMPLE = sample()


def call(at_us: int, prompt: str, answer: str) -> dict[str, Any]:
    return {"timestamp": 1_760_000_000_000_000 + at_us, "input": prompt, "output": answer,
            "session_id": "s"}  # fmt: skip


def test_lengths_of_texts_are_inferred_and_calls_sorted_by_their_microseconds() -> None:
    (program,), repairs = load(
        lmcache_agent, call(9_000_000, "x" * 990, "z" * 33), call(0, "x" * 660, "y" * 66)
    )
    assert [(t.prompt_tokens, t.output_tokens) for t in program.turns] == [(200, 20), (300, 10)]
    # 1.27 + 0.0149 · 20 + 1.47e-5 · 200 = 1.571 s of 9 s.
    assert program.turns[0].tool_gap_s == pytest.approx(7.429, abs=0.001)
    # The second prompt repeats the first one, but not its answer.
    assert program.turns[1].kept_tokens == 200
    assert len(repairs) == 2


def test_an_answer_that_follows_its_prompt_in_the_next_one_is_kept() -> None:
    prompt, answer = "x" * 660, "y" * 66
    (program,), _ = load(
        lmcache_agent, call(0, prompt, answer), call(9, prompt + answer + "z" * 330, "")
    )
    assert program.turns[1].kept_tokens == 220
