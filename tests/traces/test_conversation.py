"""Jobs whose lengths an experiment states."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from harness.experiments.definition import Synthesis
from traces import SharedPrefix
from traces.synthesis.conversation import ConversationShape

FIXED = ConversationShape(turns=3, first_prompt=110, new_tokens=20, output_tokens=5, gap_s=1.5)


def test_each_turn_adds_its_answer_and_new_tokens_to_the_prompt() -> None:
    (job,) = FIXED.draw(1, 1, shared_tokens=0)
    lengths = [(t.prompt_tokens, t.output_tokens, t.kept_tokens) for t in job.turns]
    assert lengths == [(110, 5, 0), (135, 5, 115), (160, 5, 140)]
    assert {t.tool_gap_s for t in job.turns} == {1.5}


def test_a_further_session_begins_anew_with_the_tokens_that_all_prompts_share() -> None:
    sessions = FIXED.model_copy(update={"sessions": 2, "turns": 2})
    workload = Synthesis(conversation=sessions, programs=2, shared_tokens=100)
    one, two = workload.draw()
    assert [(t.prompt_tokens, t.kept_tokens) for t in one.turns] == [
        (110, 0), (135, 115), (110, 100), (135, 115),
    ]  # fmt: skip
    assert {t.prefixes for p in (one, two) for t in p.turns} == {(SharedPrefix("common", 100),)}


def test_a_range_is_drawn_by_seed() -> None:
    drawn = FIXED.model_copy(update={"new_tokens": (10.0, 30.0)})
    new = [
        t.prompt_tokens - t.kept_tokens
        for seed in (1, 2, 1)
        for t in drawn.draw(1, seed, shared_tokens=0)[0].turns[1:]
    ]
    assert new[:2] == new[4:] != new[2:4]
    assert all(10 <= tokens <= 30 for tokens in new)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("first_prompt", (20, 10), r"first_prompt.range\n.*the smallest and the largest"),
        ("first_prompt", -5, r"first_prompt.number\n.*greater than or equal to 0"),
        ("new_tokens", math.inf, r"new_tokens.number\n.*finite"),
        ("gap_s", (0, math.nan), r"gap_s.range.1\n.*finite"),
        ("gap_s", 1e300, r"gap_s.number\n.*less than or equal to 10000000"),
        ("turns", 10**9, r"turns\n.*less than or equal to 10000"),
        ("sessions", 10**9, r"sessions\n.*less than or equal to 10000"),
    ],
)
def test_a_length_that_no_job_has_is_refused_with_its_field(
    field: str, value: object, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        ConversationShape.model_validate({**FIXED.model_dump(), field: value})
