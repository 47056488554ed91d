"""Cut and scaled programs stay valid: kept tokens are still kept, and forks still fork."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.errors import InvalidTrace
from traces import Fork, Program, Provenance, SharedPrefix, Turn, read_traces
from traces.check import check
from traces.cut import cut

TURNS = (
    Turn(1000, 100, 0, ("ls",), None, 2.0),
    Turn(1500, 200, 1100, ("pytest",), None, 4.0, Provenance.INFERRED),
    Turn(2000, 300, 900),
)
PARENT = Program("a", TURNS, SharedPrefix("system", 400), recorded_start_s=10.0, source="t.json")
CHILD = Program("a/1", TURNS[:1], fork=Fork("a", 1, 3.0, 2))


def test_lengths_and_gaps_are_scaled_and_kept_tokens_are_still_kept() -> None:
    (small,) = cut([PARENT], token_scale=0.1, gap_scale=0.5)
    first, second, third = small.turns
    assert (first.prompt_tokens, first.output_tokens, first.tool_gap_s) == (100, 10, 1.0)
    # The whole previous context, 110, and a tenth of the 400 new tokens.
    assert (second.kept_tokens, second.prompt_tokens, second.tool_gap_s) == (110, 150, 2.0)
    # The agent rewrote its history: a tenth of the 900 kept and of the 1100 new tokens.
    assert (third.kept_tokens, third.prompt_tokens) == (90, 200)
    assert small.prefix == SharedPrefix("system", 40)
    assert small.recorded_start_s == 5.0
    assert small.source == "t.json, tokens x0.1, gaps x0.5"


def test_outputs_can_have_a_separate_factor() -> None:
    (small,) = cut([PARENT], output_scale=0.01)
    assert [(t.prompt_tokens, t.output_tokens, t.kept_tokens) for t in small.turns[:2]] == [
        (1000, 1, 0),
        (1001 + 400, 2, 1001),
    ]
    assert small.source == "t.json, outputs x0.01"


def test_scaled_gaps_are_marked_as_synthesised() -> None:
    (same,) = cut([PARENT], token_scale=0.1)
    assert [turn.gap_provenance for turn in same.turns[:2]] == ["unstated", "inferred"]
    (scaled,) = cut([PARENT], gap_scale=0.5)
    assert {turn.gap_provenance for turn in scaled.turns} == {Provenance.SYNTHESISED}


def test_sub_agents_whose_fork_was_cut_off_are_removed_and_joins_cut_off_too() -> None:
    assert [p.id for p in cut([PARENT, CHILD], max_turns=1)] == ["a"]
    parent, child = cut([PARENT, CHILD], max_turns=2, gap_scale=2)
    assert len(parent.turns) == 2
    assert child.fork == Fork("a", 1, 6.0, None, Provenance.SYNTHESISED)


def test_sub_agents_belong_to_their_job_when_jobs_are_counted() -> None:
    other = replace(PARENT, id="b")
    assert [p.id for p in cut([CHILD, PARENT, other], jobs=1)] == ["a/1", "a"]


@pytest.mark.parametrize(
    "option",
    [
        {"token_scale": -1.0},
        {"jobs": 0},
        {"gap_scale": float("nan")},
        {"gap_scale": 1e10},
        {"token_scale": 1e300},
    ],
)
def test_invalid_factors_are_refused_by_name(option: dict[str, float]) -> None:
    (name,) = option
    with pytest.raises(InvalidTrace, match=f"{name} is"):
        cut([PARENT], **option)  # type: ignore[arg-type]


def test_factors_that_would_give_an_invalid_trace_are_refused() -> None:
    out_of_range = r"turn 0: tool_gap_s is 2000000000\.0, .* 32,000,000"
    with pytest.raises(InvalidTrace, match=out_of_range):
        cut([PARENT], gap_scale=1e9)


@given(
    tokens=st.floats(0, 3),
    gaps=st.floats(0, 3),
    turns=st.integers(1, 60),
    jobs=st.integers(1, 30),
)
def test_any_cut_of_a_trace_is_a_valid_trace(
    tokens: float, gaps: float, turns: int, jobs: int
) -> None:
    small = cut(PACK, jobs=jobs, max_turns=turns, token_scale=tokens, gap_scale=gaps)
    check(small)
    assert len(small) == jobs
    assert all(len(program.turns) <= turns for program in small)


PACK = read_traces([str(Path(__file__).parents[2] / "traces/packs/swe-bench.jsonl.gz")]).programs
