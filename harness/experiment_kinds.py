"""Experiments that are no sweeps: each measures and judges itself."""

from __future__ import annotations

from collections.abc import Callable

from harness.verify import DEAR_COSTS, LENGTHS, expected_blocks
from reports.claims import Finding
from servers.variants import make_policy, variants

Measure = Callable[[], list[Finding]]

NOTE_BLOCKS = [5, 9, 19, 26, 0]
"""Execution note §4.2, counted over 5,706 blocks (SEEDS §5)."""
FULL_BLOCKS = [4, 8, 18, 25, 0]


def pins() -> list[Finding]:
    """Execution note §4, in virtual time; `bench verify pins` holds a real vLLM against it."""
    rows = (
        ("continuum-preview", NOTE_BLOCKS, "the fork holds the partly filled last block too"),
        ("continuum", FULL_BLOCKS, "only what a next turn can reuse is held"),
    )
    found = []
    for name, published, says in rows:
        policy = make_policy(variants(name)[0], DEAR_COSTS)
        held = expected_blocks(policy, 1.0, 16, 5402)
        found.append(Finding(f"{name}: {says}", _row(published), _row(held), held == published))
    return found


def _row(blocks: list[int]) -> str:
    return ", ".join(map(str, blocks)) + f" blocks after the {len(LENGTHS)} turns"


MEASURES: dict[str, Measure] = {"pins": pins}
