"""A turn inside the engine: which turns are refused, and the phases of its time."""

from __future__ import annotations

import pytest

from servers.basics.errors import InvalidInput
from servers.sim import Segment, Sequence, Submission
from servers.sim.sequence import Phase, refuse_unfit
from tests.sim.worlds import profile


def turn(prompt: int, output: int) -> Submission:
    return Submission("p", ((Segment(0), 99),), prompt, output, is_last=True)


@pytest.mark.parametrize(
    ("kv_blocks", "max_model_len", "room"),
    [(4, 1000, 64), (1000, 60, 60)],
    ids=["4 blocks of 16 tokens", "60 tokens of context"],
)
def test_a_turn_may_fill_the_memory_and_the_models_context_but_not_exceed_them(
    kv_blocks: int, max_model_len: int, room: int
) -> None:
    machine = profile(kv_blocks, max_model_len)
    refuse_unfit(turn(room - 1, 1), machine, 2048)
    refuse_unfit(turn(1, room - 1), machine, 2048)
    with pytest.raises(
        InvalidInput, match=f"program p: a turn of {room + 1} tokens does not fit the {room} tokens"
    ):
        refuse_unfit(turn(room, 1), machine, 2048)


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (-1, 5)])
def test_a_turn_without_prompt_or_output_is_refused(prompt: int, output: int) -> None:
    with pytest.raises(InvalidInput, match=f"{prompt} prompt and {output} output"):
        refuse_unfit(turn(prompt, output), profile(), 2048)
    refuse_unfit(turn(1, 1), profile(), 2048)


def test_times_of_the_policys_view_are_in_seconds() -> None:
    view = Sequence(turn(10, 5), 2_500_000_000_000).view
    assert (view.arrival_s, view.program_arrival_s) == (2.5, 2.5)


def test_time_counts_for_the_phase_in_which_it_passed() -> None:
    sequence = Sequence(turn(10, 5), 100)
    sequence.start(130)
    sequence.enter(Phase.DECODE, 180)
    sequence.enter(Phase.PREEMPTED, 200)
    sequence.enter(Phase.DECODE, 270)
    sequence.close(300)
    spent = dict(zip(Phase, sequence.spent_ps, strict=True))
    assert spent == {
        Phase.QUEUE: 30,
        Phase.LOAD: 0,
        Phase.PREFILL: 50,
        Phase.DECODE: 20 + 30,
        Phase.PREEMPTED: 70,
        Phase.RECOMPUTE: 0,
    }
    assert (sequence.finished_ps, sequence.error) == (300, None)


@pytest.mark.parametrize(
    ("preemptions", "first_token_ps", "phase"),
    [(0, None, Phase.PREFILL), (1, None, Phase.PREFILL), (1, 50, Phase.RECOMPUTE)],
)
def test_a_prompt_is_recomputed_only_after_a_preemption_that_followed_the_first_token(
    preemptions: int, first_token_ps: int | None, phase: Phase
) -> None:
    sequence = Sequence(turn(10, 5), 0)
    sequence.preemptions, sequence.first_token_ps = preemptions, first_token_ps
    sequence.start(60)
    assert sequence.phase is phase
