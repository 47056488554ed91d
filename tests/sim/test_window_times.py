"""Layers with a sliding window in step times: exact in strides, and equal to sums over the turns.

Here all blocks are of one kind, as with an offload tier; tests/sim/test_windows.py has several.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.policies.fcfs import Fcfs
from servers.profiles import WindowTimes, costs
from servers.sim import Engine, Limits, Segment, Sequence, Submission
from servers.sim.batching import Batch
from tests.sim.test_engine_invariants import run
from tests.sim.worlds import World, profile, worlds

WINDOWS = st.builds(
    WindowTimes,
    tokens=st.sampled_from([1, 2, 33, 64, 100, 5000]),
    context_ps=st.sampled_from([0, 70_001]),
    pair_ps=st.sampled_from([0, 2_003]),
)


class Checked(Engine):
    """An engine that sums every step over its turns, and counts those within the window."""

    growing = 0

    def _plan(self, batch: Batch) -> None:
        running = self.scheduler.running
        running.refresh()
        skipped = {id(sequence) for sequence in batch.skipped}
        contexts = [
            sequence.computed + 1
            for sequence in running.by_id.values()
            if sequence.joined_tick is not None and id(sequence) not in skipped
        ]
        window = self.profile.window
        self.growing += any(context < window.tokens for context in contexts) if window else 0
        chunks = [(chunk, sequence.computed) for sequence, chunk in batch.chunks]
        first_ps = self.profile.batch_ps(chunks, contexts)
        super()._plan(batch)
        duration_ps = self.due_ps - self.now_ps
        if self._batch_steps == 1:
            assert duration_ps == first_ps + batch.load_ps
        else:
            assert duration_ps >= first_ps * self._batch_steps


@pytest.mark.parametrize("name", ["fcfs", "continuum", "continuum+", "infercept"])
@given(world=worlds(), window=WINDOWS)
def test_strides_with_a_window_equal_single_steps(
    name: str, world: World, window: WindowTimes
) -> None:
    world = replace(world, profile=replace(world.profile, window=window))
    turns, events, done = run(world, name)
    single_turns, single_events, single_done = run(world, name, strides=False)
    assert (turns, events, done.virtual_s, done.steps) == (
        single_turns,
        single_events,
        single_done.virtual_s,
        single_done.steps,
    )


def served(strides: bool, *turns: tuple[int, int, int], window: int = 64) -> Any:
    """Serve turns of (sent at, prompt tokens, output tokens), and return the engine and ends."""
    ends: list[tuple[int, int]] = []

    def ended(sequence: Sequence) -> None:
        ends.append((sequence.submission.prompt_tokens, engine.now_ps))

    machine = replace(
        profile(1000, base_ps=1, weights_ps=0, token_ps=0, context_ps=3, pair_ps=5),
        window=WindowTimes(window, context_ps=1000, pair_ps=70),
    )
    limits = Limits(8, 32)
    policy = Fcfs(costs(machine, step_tokens=32, offload=False))
    engine = Checked(policy, machine, limits, on_end=ended, strides=strides)
    for at_ps, prompt, output in turns:
        path = ((Segment(0), (prompt + output) // 16),)
        engine.submit(Submission(None, path, prompt, output, None), at_ps)
    engine.run()
    return engine, ends


def test_a_turn_that_fills_its_window_is_timed_by_hand() -> None:
    # A prompt of 3 tokens and 6 output tokens; the window holds 5. The prompt has 1 + 2 + 3 pairs
    # in both kinds of layers. Decodes have contexts of 4 to 8, and read 4, 5, 5, 5 and 5 tokens.
    prompt_ps = 1 + 6 * 5 + 6 * 70
    decodes_ps = 5 * 1 + (4 + 5 + 6 + 7 + 8) * 3 + (4 + 4 * 5) * 1000
    engine, ends = served(True, (0, 3, 6), window=5)
    assert ends == [(3, prompt_ps + decodes_ps)]
    # the prompt, the step that fills the window, and the stride of the rest
    assert (engine.steps, engine.strides - 1) == (6, 3)


TURNS = ((0, 10, 90), (5_000, 40, 50), (9_000_000, 200, 70), (9_100_000, 1, 3), (9_200_000, 63, 2))


def test_every_step_is_the_sum_over_its_turns_and_most_are_in_strides() -> None:
    stepwise, single = served(False, *TURNS)
    strided, ends = served(True, *TURNS)
    assert ends == single
    assert stepwise.growing > 50
    assert strided.strides < stepwise.strides / 5
