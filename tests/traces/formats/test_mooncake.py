"""Requests of Mooncake: blocks of 512 tokens, and rows that are whole prompts or new parts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sentences import each_mentions, mentions
from tests.traces.sample import Sample, json_lines, load
from traces import Provenance
from traces.formats import mooncake
from traces.formats.shared.calls import Call
from traces.lenient import Repairs


def sample() -> Sample:
    def request(session: str, prompt: int, hashes: list[int], **fields: Any) -> dict[str, Any]:
        return {"session_id": session, "input_length": prompt, "output_length": 20,
                "hash_ids": hashes, **fields}  # fmt: skip

    lines = json_lines(
        request("a", 1100, [1, 2, 3], timestamp=0),
        request("b", 1030, [1, 2, 9], timestamp=500),
        request("a", 1600, [1, 2, 4, 5], delay=1500),
    )
    return Sample({"mooncake.jsonl": lines}, (Provenance.UNSTATED,))


SAMPLE = sample()


def row(prompt: int, hashes: list[int] | None = None, **fields: Any) -> dict[str, Any]:
    extra = {} if hashes is None else {"hash_ids": hashes}
    return {"input_length": prompt, "output_length": 10, **extra, **fields}


def test_requests_of_mooncake_without_sessions_share_blocks_of_512_tokens() -> None:
    programs, repairs = load(
        mooncake, row(1500, [1, 2, 3], timestamp=0), row(1100, [1, 2, 9], timestamp=2500)
    )
    assert [len(program.turns) for program in programs] == [1, 1]
    assert [program.turns[0].prefixes[-1].tokens for program in programs] == [1024, 1024]
    assert programs[1].recorded_start_s == 2.5
    assert repairs == [f"{mooncake.SINGLE_TURNS} (2 times)"]


def test_rows_that_share_their_first_block_are_whole_prompts() -> None:
    (program,), repairs = load(
        mooncake,
        row(1100, [1, 2, 3], session_id="a"), row(1600, [1, 2, 4, 5], session_id="a", delay=1500),
    )  # fmt: skip
    # Both full blocks of the first prompt are repeated, and the second one is long enough for its
    # output too.
    assert [(turn.prompt_tokens, turn.kept_tokens) for turn in program.turns] == [
        (1100, 0), (1600, 1110),
    ]  # fmt: skip
    assert (program.turns[0].tool_gap_s, program.turns[0].gap_provenance) == (1.5, "unstated")
    assert each_mentions(repairs, "whole prompts (inferred)")


def test_a_row_without_hashes_extends_the_row_before() -> None:
    (program,), repairs = load(
        mooncake,
        row(1100, [1, 2, 3], session_id="a"), row(1200, session_id="a", delay=1),
    )  # fmt: skip
    assert program.turns[1].kept_tokens == 1110
    assert mentions(repairs, "without hash_ids", "extend the previous one")


def test_rows_that_share_no_block_have_only_the_new_part() -> None:
    (a, b), repairs = load(
        mooncake,
        row(1100, [1, 2, 3], session_id="a"), row(1030, [1, 2, 9], session_id="b"),
        row(50, [7], session_id="a", delay=1), row(60, [8], session_id="a", delay=1),
    )  # fmt: skip
    # 1100 + 10 + 50 = 1160; 1160 + 10 + 60 = 1230.
    assert [(turn.prompt_tokens, turn.kept_tokens) for turn in a.turns] == [
        (1100, 0), (1160, 1110), (1230, 1170),
    ]  # fmt: skip
    assert [turn.prefixes[-1].tokens for turn in a.turns] == [1024] * 3
    assert b.turns[0].prefixes == a.turns[0].prefixes
    assert "only the new part" in repairs[0]


def test_sessions_without_hashes_are_whole_prompts_if_they_grow_by_the_output() -> None:
    (whole,), _ = load(mooncake, row(100, session_id="a"), row(150, session_id="a"))
    assert (whole.turns[1].prompt_tokens, whole.turns[1].kept_tokens) == (150, 110)
    (delta,), _ = load(mooncake, row(100, session_id="a"), row(30, session_id="a"))
    assert (delta.turns[1].prompt_tokens, delta.turns[1].kept_tokens) == (140, 110)


def test_without_delay_the_gap_is_inferred_from_the_timestamps() -> None:
    # 1.27 + 0.0149 · 10 + 1.47e-5 · 100 = 1.42 s of 5 s.
    (program,), _ = load(
        mooncake, row(100, session_id="a", timestamp=0), row(150, session_id="a", timestamp=5000)
    )
    assert program.turns[0].tool_gap_s == pytest.approx(3.58, abs=0.001)
    assert program.turns[0].gap_provenance is Provenance.INFERRED


def test_without_delay_and_timestamps_there_is_no_gap() -> None:
    (program,), repairs = load(mooncake, row(100, session_id="a"), row(150, session_id="a"))
    assert (program.turns[0].tool_gap_s, program.turns[0].gap_provenance) == (0.0, "unstated")
    assert mentions(repairs, "without delay or timestamp", "set to 0")


@pytest.mark.parametrize(
    ("rows", "block"),
    [
        ([(6758, 14), (7322, 15)], 512),
        ([(100, 7), (65, 5)], 16),  # 7 blocks of 16 hold up to 112 tokens, 6 only 96
        ([(1024, 3), (1536, 3)], 512),  # fits none
    ],
)
def test_the_block_size_follows_from_lengths_and_numbers_of_hashes(
    rows: list[tuple[int, int]], block: int
) -> None:
    requests = [Call(n, 1, hashes=list(range(count))) for n, count in rows]
    assert mooncake.block_tokens(requests, Repairs()) == block
