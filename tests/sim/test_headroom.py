"""What turns leave to others of a step and of the KV memory, worked by hand.

A step takes one picosecond per token. A block holds 16 tokens.
"""

from __future__ import annotations

from typing import Any

import pytest

from servers.admission import Headroom
from servers.basics.errors import InvalidInput
from servers.sim import Limits
from tests.sim.test_engine import engine, turn

ONE_PER_TOKEN = {
    "base_ps": 0,
    "weights_ps": 0,
    "token_ps": 1,
    "context_ps": 0,
    "pair_ps": 0,
}


def ends(turns: dict[str, tuple[int, int]], kv_blocks: int, limits: Limits) -> dict[str, Any]:
    """Return the times of the first and of the last token of turns that arrive at once."""
    made, ended, _ = engine(kv_blocks=kv_blocks, limits=limits, **ONE_PER_TOKEN)
    for name, (prompt, output) in turns.items():
        made.submit(turn(name, prompt, output), 0)
    made.run()
    return {s.view.program_id: (s.first_token_ps, s.finished_ps) for s in ended}


@pytest.mark.parametrize(
    ("headroom", "short", "long"),
    [
        # Chunks: long 100; long 50, short 50; short 30; then the second token of short.
        ({}, (230, 231), (200, 200)),
        # 30 and 30 tokens in steps 1 and 2, and 30 and 20 in step 3: 60, 120 and 170. Step 4 has 30
        # and a token of short. Then long is alone: its last 30 tokens take one step, without a cap.
        ({"long_prefill": 30}, (170, 201), (231, 231)),
        # The share of two turns is 50 tokens: 50 and 50, 50 and 30, 50 and a token.
        ({"long_prefill": 30, "long_prefill_adaptive": True}, (180, 231), (231, 231)),
    ],
)
def test_a_capped_prompt_leaves_tokens_to_the_turns_behind_it(
    headroom: dict[str, Any], short: tuple[int, int], long: tuple[int, int]
) -> None:
    turns = {"long": (150, 1), "short": (80, 2)}
    found = ends(turns, 100, Limits(4, 100, **headroom))
    assert found == {"short": short, "long": long}


def test_a_turn_without_others_uses_whole_steps_despite_the_cap() -> None:
    made, ended, _ = engine(limits=Limits(4, 100, long_prefill=1), **ONE_PER_TOKEN)
    made.submit(turn("a", 1000, 1), 0)
    made.run()
    assert (made.steps, ended[0].finished_ps) == (10, 1000)


@pytest.mark.parametrize(
    ("watermark", "b_ps"),
    [
        (0.0, 150),  # The 7 blocks of a and the 4 of b fit, so one step computes both prompts.
        # 3 of the 12 blocks of which vLLM uses one itself must stay free beside a, but a itself may
        # take 7 of 11: b is admitted when a has ended, at 100 + 2, and then nothing must stay free.
        (0.25, 152),
    ],
)
def test_admissions_beside_a_running_turn_leave_the_watermark_free(
    watermark: float, b_ps: int
) -> None:
    found = ends({"a": (100, 3), "b": (50, 1)}, 11, Limits(4, 200, watermark=watermark))
    assert found["b"] == (b_ps, b_ps)


@pytest.mark.parametrize(
    ("headroom", "message"),
    [
        ({"long_prefill": -1}, "^--long-prefill -1: must be at least 1, or 0 for no cap$"),
        ({"long_prefill_adaptive": True}, "raises the cap of --long-prefill, which is off; add"),
        ({"watermark": 1.0}, "^--watermark 1: must be at least 0 and below 1$"),
    ],
)
def test_headroom_that_means_nothing_is_refused(headroom: dict[str, Any], message: str) -> None:
    for limits in (Headroom, Limits):
        with pytest.raises(InvalidInput, match=message):
            limits(**headroom)
