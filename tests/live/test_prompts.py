"""Prompts sent to a live server share exactly the prefixes that the traces define."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.replay.prompts import TokenPrompts
from tests.live.replaying import replayed
from tests.live.server import Server, common_prefix
from tests.sim.worlds import turns
from traces import Program, SharedPrefix, Turn

MANY_IDS = range(2**31)
"""So many token ids that two draws are never equal by chance."""


def no_gaps(all_turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    return tuple(replace(turn, tool_gap_s=0.0) for turn in all_turns)


def expected(programs: list[Program]) -> Iterator[tuple[str, int, list[object]]]:
    """Yield each turn's expected prompt, in which every new token has a new name."""
    new_name = count()
    for program in programs:
        context: list[object] = []
        for i, turn in enumerate(program.turns):
            kept = context[: turn.kept_tokens]
            if i == 0 and program.prefix is not None:
                shared = min(program.prefix.tokens, turn.prompt_tokens - 1)
                kept = [(program.prefix.id, n) for n in range(shared)]
            prompt = kept + [next(new_name) for _ in range(turn.prompt_tokens - len(kept))]
            yield program.id, i, prompt
            context = prompt + [(program.id, i, n) for n in range(turn.output_tokens)]


@given(
    st.lists(
        st.tuples(turns(), st.sampled_from([None, 5, 37, 64])),
        min_size=1,
        max_size=4,
    )
)
def test_prompts_share_exactly_the_prefixes_that_the_programs_share(
    all_turns: list[tuple[tuple[Turn, ...], int | None]],
) -> None:
    programs = [
        Program(f"p{i}", no_gaps(own), SharedPrefix("system", tokens) if tokens else None)
        for i, (own, tokens) in enumerate(all_turns)
    ]
    server = Server()
    lines, _ = replayed(programs, server)
    assert len(lines) == sum(len(p.turns) for p in programs)
    assert not any(line["error"] for line in lines.values())
    expected_prompts = list(expected(programs))
    for (a, i, names_a), (b, j, names_b) in combinations(expected_prompts, 2):
        sent_a, sent_b = server.prompts[a, i], server.prompts[b, j]
        assert common_prefix(sent_a, sent_b) == common_prefix(names_a, names_b)
    for program, i, names in expected_prompts:
        sent = server.prompts[program, i]
        assert len(sent) == len(names)
        for id, name in zip(sent, names, strict=True):
            if isinstance(name, tuple) and len(name) == 3:  # a token of the server's answer
                assert id == server.answers[name[:2]][name[2]]


def prompt(program: Program, vocabulary: range, seed: int) -> list[int]:
    return TokenPrompts(vocabulary, seed).conversation(program).prompt(program.turns[0]).tolist()


def test_contents_depend_only_on_the_program_and_the_seed() -> None:
    program = Program("p", (Turn(50, 1),), SharedPrefix("system", 20))
    other = Program("q", (Turn(50, 1),), SharedPrefix("system", 30))
    alone = prompt(program, MANY_IDS, 0)
    both = TokenPrompts(MANY_IDS, 0)
    assert both.conversation(other).prompt(other.turns[0])[:20].tolist() == alone[:20]
    assert both.conversation(program).prompt(program.turns[0]).tolist() == alone
    assert common_prefix(prompt(program, MANY_IDS, 1), alone) == 0


def test_only_ids_of_the_vocabulary_are_sent() -> None:
    program = Program("p", (Turn(2000, 1),), SharedPrefix("system", 500))
    assert set(prompt(program, range(3, 20), 0)) == set(range(3, 20))


@pytest.mark.parametrize("vocabulary", [range(0), range(-1, 5), range(0, 10, 2)])
def test_an_invalid_vocabulary_is_refused(vocabulary: range) -> None:
    with pytest.raises(ValueError, match="must be range"):
        TokenPrompts(vocabulary, 0)
