"""Random prompts with known tokens, and the programs derived from their block hashes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from hypothesis import assume
from hypothesis import strategies as st

from tests.live.server import common_prefix
from traces import Program, Turn
from traces.block_hashes import share_blocks
from traces.check import check

Tokens = list[int]


@dataclass(frozen=True)
class HashedWorld:
    programs: list[Program]
    hash_block: int
    """Tokens of a hashed block."""
    prompts: dict[tuple[str, int], Tokens]
    """The true tokens by program and turn; tokens are equal only if text is repeated."""

    def hashes(self, program: str, turn: int) -> list[int]:
        """Return the hashes of a prompt; each identifies a block and all blocks before it."""
        prompt, block = self.prompts[program, turn], self.hash_block
        return [hash(tuple(prompt[: i + block])) for i in range(0, len(prompt) - block + 1, block)]


@st.composite
def hashed_worlds(draw: st.DrawFn) -> HashedWorld:
    """Draw prompts that extend the previous one, rewrite its end, or continue any earlier one."""
    new_token = count()
    block = draw(st.sampled_from([4, 16, 24]))
    prompts: dict[tuple[str, int], Tokens] = {}
    contexts: dict[tuple[str, int], Tokens] = {}
    plain = []
    for program in "abc"[: draw(st.integers(1, 3))]:
        turns: list[Turn] = []
        for number in range(draw(st.integers(1, 4))):
            sources = ["new", "earlier"] + ["extend", "extend", "rewrite"] * (number > 0)
            source = draw(st.sampled_from(sources))
            base: Tokens = []
            if source == "extend":
                base = contexts[program, number - 1]
            elif source == "rewrite":
                base = cut(draw, prompts[program, number - 1], block)
            elif source == "earlier" and prompts:
                base = cut(draw, draw(st.sampled_from(list(prompts.values()))), block)
            new = draw(st.integers(1, 60))
            prompt = base + [next(new_token) for _ in range(new)]
            output = draw(st.integers(1, 30))
            prompts[program, number] = prompt
            contexts[program, number] = prompt + [next(new_token) for _ in range(output)]
            turns.append(Turn(len(prompt), output))
        plain.append(Program(program, tuple(turns)))
    world = HashedWorld(plain, block, prompts)
    hashes = {p.id: [world.hashes(p.id, n) for n in range(len(p.turns))] for p in plain}
    programs = share_blocks(plain, hashes, block)
    check(programs)
    for program in programs:
        for number, turn in enumerate(program.turns):
            if number:  # Hashes do not say whether an answer, or half a block, is repeated.
                before = contexts[program.id, number - 1]
                assume(common_prefix(before, prompts[program.id, number]) >= turn.kept_tokens)
    return HashedWorld(programs, block, prompts)


def cut(draw: st.DrawFn, prompt: Tokens, block: int) -> Tokens:
    return prompt[: block * draw(st.integers(0, len(prompt) // block))]
