"""Finds the program of a request whose client names none, by its prompt.

In: vLLM's hashes of the blocks of a prompt, each of which covers the blocks before it. Out: the id
of the program whose latest prompt this one continues, or of a new program. A program with a turn
in flight is not continued, and neither is a prompt to which nothing was added: several requests
with the same prompt are several programs. Standard library only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from servers.programs import MAX_PROGRAMS, blocks_to_repeat


class KnownPrompts:
    def __init__(self, block_tokens: int, max_prompts: int = MAX_PROGRAMS) -> None:
        """`max_prompts`: how many prompts are remembered, the latest ones."""
        self._block_tokens = block_tokens
        self._max_prompts = max_prompts
        self._programs: OrderedDict[object, str] = OrderedDict()
        """By the hash of the last block that the next prompt of the program repeats."""
        self._begun = 0

    def program_of(self, prompt_tokens: int, block_hashes: Sequence[object]) -> str | None:
        """Return None for a prompt that is shorter than a block."""
        blocks = self._blocks(prompt_tokens, block_hashes)
        for position in range(blocks - 2, -1, -1):
            program = self._programs.pop(block_hashes[position], None)
            if program is not None:
                return program
        if not blocks:
            return None
        self._begun += 1
        return f"conversation {self._begun}"

    def turn_ended(
        self, program_id: str, prompt_tokens: int, block_hashes: Sequence[object]
    ) -> None:
        """Remember the prompt of the program's latest turn."""
        if blocks := self._blocks(prompt_tokens, block_hashes):
            self._programs[block_hashes[blocks - 1]] = program_id
            self._programs.move_to_end(block_hashes[blocks - 1])
            if len(self._programs) > self._max_prompts:
                self._programs.popitem(last=False)

    def _blocks(self, prompt_tokens: int, block_hashes: Sequence[object]) -> int:
        return min(blocks_to_repeat(prompt_tokens, self._block_tokens), len(block_hashes))
