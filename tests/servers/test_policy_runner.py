"""The waiting queue and the pins around every policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.pin_table import ActivePin, PinTable
from servers.policies.base import Pin, Request
from servers.ranked_queue import RankedQueue


@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "remove"]), st.integers(0, 9), st.integers(-5, 5)),
        max_size=60,
    )
)
def test_the_head_is_always_the_live_item_of_smallest_latest_rank(
    moves: list[tuple[str, int, int]],
) -> None:
    queue: RankedQueue[int] = RankedQueue()
    ranks: dict[int, int] = {}
    for move, key, rank in moves:
        if move == "push":
            queue.push(key, (rank, key), key)
            ranks[key] = rank
        else:
            queue.remove(key)
            ranks.pop(key, None)
        assert len(queue) == len(ranks)
        assert set(queue) == set(ranks)
        if ranks:
            assert queue.peek() == min(ranks, key=lambda k: (ranks[k], k))


def active(program_id: str, expires_ps: int | None, blocks: int = 3) -> ActivePin[str, str]:
    request = Request(1, program_id, 0, 0.0, 0.0, 10)
    pin = Pin(request, 10, 0.0, 0.0)
    return ActivePin(pin, f"turn of {program_id}", f"kv of {program_id}", blocks, expires_ps)


def expired(pins: PinTable[str, str], now_ps: int) -> list[str]:
    gone = []
    for program_id in pins.expired(now_ps):
        assert pins.pop(program_id) is not None
        gone.append(program_id)
    return gone


def test_pins_expire_in_order_of_time_and_some_never() -> None:
    pins: PinTable[str, str] = PinTable()
    for program_id, expires_ps in (("late", 30), ("early", 10), ("never", None)):
        pins.add(active(program_id, expires_ps))
    assert pins.blocks == 9
    assert pins.next_expiry_ps() == 10
    assert expired(pins, 9) == []
    assert expired(pins, 30) == ["early", "late"]
    assert pins.next_expiry_ps() is None
    assert "never" in pins
    assert pins.blocks == 3


def test_a_pin_whose_turn_is_back_expires_only_once_the_turn_has_left_the_queue() -> None:
    pins: PinTable[str, str] = PinTable()
    pins.add(active("a", 10))
    pins.turn_queued("a")
    pins.turn_queued("a")
    assert pins.next_expiry_ps() is None
    assert expired(pins, 99) == []
    pins.turn_dequeued("a")
    assert expired(pins, 99) == []
    pins.turn_dequeued("a")
    assert expired(pins, 99) == ["a"]


def test_a_program_that_is_waiting_when_it_is_pinned_is_protected_too() -> None:
    pins: PinTable[str, str] = PinTable()
    pins.turn_queued("a")
    pins.add(active("a", 10))
    assert expired(pins, 99) == []
    pins.turn_dequeued("a")
    assert expired(pins, 99) == ["a"]


def test_a_second_pin_of_a_program_is_a_bug_of_the_adapter() -> None:
    pins: PinTable[str, str] = PinTable()
    pins.add(active("a", 10))
    with pytest.raises(ValueError, match="program a is pinned already"):
        pins.add(active("a", 20))
