"""The memory that is booked for programs, worked by hand."""

from __future__ import annotations

import pytest
from policy_turns import held, turn

from servers.policies.base import Request
from servers.policies.estimates.working_sets import WorkingSets


def run(sets: WorkingSets, request: Request, cached_tokens: int = 0) -> None:
    sets.arrived(request)
    sets.started(request, cached_tokens)


def test_a_programs_growth_is_its_own_and_two_turns_of_everybodys() -> None:
    sets = WorkingSets(10_000, reserve_turns=3)
    assert sets.tokens("new", 1000) == 1000
    for index, tokens in enumerate((1000, 1200, 1600)):
        sets.arrived(turn("grows", index=index, tokens=tokens))
    for index, tokens in enumerate((500, 500)):
        sets.arrived(turn("stays", index=index, tokens=tokens))
    # 600 tokens in three turns: 200 on average. grows: (600 + 400) / (2 + 2) = 250 a turn; stays:
    # (0 + 400) / (1 + 2) = 133.3.
    assert sets.tokens("grows", 1600) == 1600 + 3 * 250
    assert sets.tokens("stays", 500) == pytest.approx(500 + 3 * 400 / 3)
    assert sets.tokens("new", 1000) == 1000 + 3 * 200


def test_a_shorter_prompt_is_no_negative_growth() -> None:
    sets = WorkingSets(10_000, reserve_turns=1)
    sets.arrived(turn("a", tokens=3000))
    sets.arrived(turn("a", index=1, tokens=1000))
    assert sets.tokens("a", 1000) == 1000


def test_a_program_fits_until_the_device_is_booked_and_a_held_one_always() -> None:
    sets = WorkingSets(10_000, reserve_turns=3)
    first, second = turn("first", tokens=6000), turn("second", tokens=4001)
    run(sets, first)
    assert sets.fits(turn("other", tokens=4000))
    assert not sets.fits(second)
    assert sets.fits(turn("first", index=1, tokens=9000))


@pytest.mark.parametrize("end", ["stopped", "pinned"])
def test_memory_is_free_again_when_no_turn_runs_and_no_pin_holds_it(end: str) -> None:
    sets = WorkingSets(10_000, reserve_turns=0)
    one, other = turn("a", tokens=6000), turn("a", tokens=6000)
    waiting = turn("b", tokens=5000)
    run(sets, one)
    run(sets, other)
    sets.stopped(one)
    assert not sets.fits(waiting)
    pin = held(other)
    if end == "pinned":
        sets.pinned(pin)
    sets.stopped(other)
    sets.stopped(other)  # A turn that does not run changes nothing.
    assert sets.fits(waiting) == (end == "stopped")
    if end == "pinned":
        sets.unpinned(pin)
        assert sets.fits(waiting)


def test_a_prefix_that_all_first_turns_hit_is_booked_once() -> None:
    sets = WorkingSets(10_000, reserve_turns=0)
    for number in range(9):  # The first finds an empty cache, and eight others the prefix.
        request = turn(f"p{number}", tokens=2000)
        run(sets, request, cached_tokens=0 if number == 0 else 1000)
        sets.stopped(request)
    for number in range(8):
        run(sets, turn(f"q{number}", tokens=2000), cached_tokens=1000)
    # Eight programs hold 8 * 1000 + 1000 tokens; one more has 1000 of its own.
    assert sets.fits(turn("r", tokens=2000))
    assert not sets.fits(turn("r", tokens=2001))


def test_a_negative_reserve_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reserve_turns .* at least 0, not -1"):
        WorkingSets(10_000, -1)
