"""Two turns share exactly the blocks of their longest common prefix."""

from __future__ import annotations

from itertools import combinations, count, takewhile

from hypothesis import given
from hypothesis import strategies as st

from harness.replay.contents import Contents
from servers.sim import Path, Segment
from tests.sim.worlds import BLOCK, turns
from traces import Program, SharedPrefix, Turn


def blocks(path: Path) -> list[tuple[Segment, int]]:
    """Return a name for each full block on the path."""
    return [(segment, i) for segment, leave in path for i in range(segment.start, leave)]


def contexts(programs: list[Program]) -> list[list[object]]:
    """Return each turn's context, in which every new token has a new name."""
    new_name = count()
    generated: list[list[object]] = []
    for program in programs:
        context: list[object] = []
        for i, turn in enumerate(program.turns):
            kept = context[: turn.kept_tokens] if i else []
            if not i and program.prefix is not None:
                shared = min(program.prefix.tokens, turn.prompt_tokens)
                kept = [(program.prefix.id, n) for n in range(shared)]
            context = kept + [next(new_name) for _ in range(turn.context_tokens - len(kept))]
            generated.append(context)
    return generated


@given(
    st.lists(
        st.tuples(turns(), st.sampled_from([None, 5, 37, 64])),
        min_size=1,
        max_size=4,
    )
)
def test_shared_blocks_are_those_of_equal_prefixes(
    generated: list[tuple[tuple[Turn, ...], int | None]],
) -> None:
    programs = [
        Program(f"p{i}", own, SharedPrefix("system", tokens) if tokens else None)
        for i, (own, tokens) in enumerate(generated)
    ]
    contents = Contents(BLOCK)
    paths = [blocks(path) for program in programs for path in contents.paths(program)]
    tokens = contexts(programs)
    assert [len(p) for p in paths] == [len(t) // BLOCK for t in tokens]
    for (path_a, tokens_a), (path_b, tokens_b) in combinations(zip(paths, tokens, strict=True), 2):
        same = sum(
            1 for _ in takewhile(lambda ab: ab[0] == ab[1], zip(tokens_a, tokens_b, strict=False))
        )
        assert len(set(path_a) & set(path_b)) == same // BLOCK
        assert path_a[: same // BLOCK] == path_b[: same // BLOCK]


def test_the_path_of_a_program_that_drops_its_answers_stays_short() -> None:
    turns, prompt = [], 100
    for i in range(50):
        turns.append(Turn(prompt, 40, prompt - 60 if i else 0))
        prompt += 60  # the answer's 40 tokens are not kept
    paths = list(Contents(BLOCK).paths(Program("p", tuple(turns))))
    assert {len(path) for path in paths} == {1, 2}
