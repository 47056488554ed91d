"""The pin verification of the execution note (§4.2), to the block.

Five turns of 66+7, 131+9, 279+12, 397+8 and 503+7 prompt and output tokens, blocks of 16. The last
sampled token has no KV yet, so 72, 139, 290 and 404 tokens are pinned through the tool gaps.
"""

from __future__ import annotations

from functools import partial

import pytest

from harness.replay.virtual import replay
from servers.policies.base import Costs, Policy
from servers.records.turns import EventRecord
from servers.sim import Engine, Limits
from servers.variants import make_policy, variants
from tests.sim.worlds import profile
from traces import Program, Turn

LENGTHS = [(66, 7), (131, 9), (279, 12), (397, 8), (503, 7)]
TOOLS = ["ls", "cat", "grep", "git", "pytest"]
EXPENSIVE = Costs(prefill_s=float)
"""Rebuilding takes a second per token, so that every policy pins through gaps of a second."""


def job() -> Program:
    turns, context = [], 0
    for (prompt, output), tool in zip(LENGTHS, TOOLS, strict=True):
        turns.append(Turn(prompt, output, context, (tool,), None, tool_gap_s=1.0))
        context = prompt + output
    return Program("job_alpha", tuple(turns))


def pinned_blocks(policy: Policy) -> tuple[list[int], list[int], int]:
    """Return the blocks in use after each turn, at the end of each gap, and after the last turn."""
    after: list[int] = []
    before: list[int] = []

    def on_event(event: EventRecord) -> None:
        if event.event == "pinned":
            after.append(int(event.blocks or 0))
        if event.event == "unpinned" and event.reason == "reused":
            before.append(after[-1])

    engine = partial(Engine, policy, profile(kv_blocks=5402), Limits(), on_event=on_event)
    oracle = bool(variants(policy.name)[0].reference)
    done = replay([job()], [0.0], None, engine, on_turn=lambda _: None, oracle=oracle)
    usage = done.usage
    assert isinstance(usage, list)
    used = [point[1] for point in usage]
    assert used[:-1] == after
    return used[:-1], before, used[-1]


def test_the_public_fork_pins_the_partly_filled_last_block_too() -> None:
    policy = make_policy(variants("continuum-preview")[0], EXPENSIVE)
    assert pinned_blocks(policy) == ([5, 9, 19, 26], [5, 9, 19, 26], 0)


@pytest.mark.parametrize("name", ["static-ttl", "continuum", "infercept", "clairvoyant"])
def test_other_policies_pin_only_blocks_that_the_next_turn_can_reuse(name: str) -> None:
    policy = make_policy(variants(name)[0], EXPENSIVE)
    assert pinned_blocks(policy) == ([4, 8, 18, 25], [4, 8, 18, 25], 0)
