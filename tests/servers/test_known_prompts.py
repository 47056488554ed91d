"""A request that names no program continues the one whose latest prompt it repeats.

Prompts are texts in which a letter is a block of 16 tokens, and each has 16 more tokens, which the
next prompt need not repeat.
"""

from __future__ import annotations

import pytest

from servers.programs import blocks_to_repeat
from servers.vllm.plugin.known_prompts import KnownPrompts


def hashes(prompt: str) -> list[str]:
    """Return a hash of each block, which covers those before it."""
    return [prompt[: end + 1] for end in range(len(prompt))]


def serve(known: KnownPrompts, prompt: str) -> str | None:
    program = known.program_of(16 * len(prompt) + 16, hashes(prompt))
    if program is not None:
        known.turn_ended(program, 16 * len(prompt) + 16, hashes(prompt))
    return program


@pytest.mark.parametrize(
    ("prompt_tokens", "blocks"),
    # all but the last 16; an eighth, 25; 80
    [(16, 0), (31, 0), (32, 1), (128, 7), (200, 10), (640, 35), (1000, 57)],
)
def test_the_next_prompt_need_not_repeat_an_eighth_of_16_to_80_tokens(
    prompt_tokens: int, blocks: int
) -> None:
    assert blocks_to_repeat(prompt_tokens, 16) == blocks


def test_the_last_incomplete_block_of_64_tokens_may_change_as_in_replays_of_hashes() -> None:
    for prompt_tokens in range(640, 1280):
        assert blocks_to_repeat(prompt_tokens, 16) * 16 <= prompt_tokens // 64 * 64


def test_the_turns_of_a_conversation_are_one_program() -> None:
    known = KnownPrompts(16)
    assert serve(known, "sys a") == "conversation 1"
    assert serve(known, "sys b") == "conversation 2"
    assert serve(known, "sys a answer, result") == "conversation 1"
    assert serve(known, "sys b answer, result") == "conversation 2"
    assert serve(known, "sys a answer, result, more") == "conversation 1"


def test_a_program_with_a_turn_in_flight_is_not_continued() -> None:
    known = KnownPrompts(16)
    assert serve(known, "sys a") == "conversation 1"
    longer = 16 * 8 + 16, hashes("sys a 1 ")
    assert known.program_of(*longer) == "conversation 1"
    assert known.program_of(*longer) == "conversation 2"
    known.turn_ended("conversation 1", *longer)
    assert serve(known, "sys a 1 2") == "conversation 1"


def test_a_prompt_that_adds_nothing_begins_a_program() -> None:
    known = KnownPrompts(16)
    assert [serve(known, "sys a"), serve(known, "sys a")] == ["conversation 1", "conversation 2"]


def test_a_rewritten_history_begins_a_program() -> None:
    known = KnownPrompts(16)
    serve(known, "sys a answer")
    assert serve(known, "sys summary of a") == "conversation 2"


def test_a_prompt_shorter_than_a_block_belongs_to_no_program() -> None:
    known = KnownPrompts(16)
    assert known.program_of(31, hashes("s")) is None
    assert known.program_of(32, hashes("s")) == "conversation 1"


def test_only_the_latest_prompts_are_remembered() -> None:
    known = KnownPrompts(16, max_prompts=2)
    for prompt in ("aa", "bb", "cc"):
        serve(known, prompt)
    assert serve(known, "aa+") == "conversation 4"
    assert serve(known, "cc+") == "conversation 3"
