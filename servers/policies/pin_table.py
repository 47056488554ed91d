"""The pins of one engine: which program's KV blocks are retained, and until when.

Standard library only, since vLLM loads this too. Times are the engine's whole picoseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from servers.policies.base import Pin
from servers.policies.ranked_queue import MIN_COMPACTED

Turn = TypeVar("Turn")
KV = TypeVar("KV")


class ActivePin(Generic[Turn, KV]):
    """A pin and the KV blocks that it retains."""

    __slots__ = ("blocks", "expires_ps", "kv", "pin", "turn")

    def __init__(self, pin: Pin, turn: Turn, kv: KV, blocks: int, expires_ps: int | None) -> None:
        self.pin = pin
        self.turn = turn
        """The finished turn that left it."""
        self.kv = kv
        """The engine's handle for releasing the blocks."""
        self.blocks = blocks
        self.expires_ps = expires_ps
        """None: the pin never expires."""


class PinTable(Generic[Turn, KV]):
    """At most one pin per program, and their expiry in order of time.

    A pin does not expire while a turn of its program waits (Continuum v3, §5.2). The runner reports
    such turns through `turn_queued` and `turn_dequeued`.
    """

    def __init__(self) -> None:
        self._pins: dict[str, ActivePin[Turn, KV]] = {}
        self._expiry: list[tuple[int, int, ActivePin[Turn, KV]]] = []
        """A heap. It has entries that are out of date, at most about as many as others."""
        self._waiting_turns: dict[str, int] = {}
        """Number of waiting turns by program; programs without any are absent."""
        self._serial = 0
        self._offered: list[Pin] | None = None
        """The pins, oldest first, until one is added or popped: each step may offer them."""
        self.blocks = 0
        """Blocks retained by all pins."""

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, program_id: str) -> bool:
        return program_id in self._pins

    def __iter__(self) -> Iterator[ActivePin[Turn, KV]]:
        """Iterate over a copy, oldest pin first, so that the caller may remove pins."""
        return iter(list(self._pins.values()))

    def offered(self, spare: str | None = None) -> list[Pin]:
        """Return the pins without program `spare`'s, oldest pin first."""
        if self._offered is None:
            self._offered = [active.pin for active in self._pins.values()]
        spared = None if spare is None else self._pins.get(spare)
        if spared is None:
            return self._offered[:]
        return [pin for pin in self._offered if pin is not spared.pin]

    def blocks_of(self, program_ids: Iterable[str]) -> int:
        """Return the blocks that the pins of these programs retain."""
        return sum([self._pins[program_id].blocks for program_id in program_ids])

    def add(self, active: ActivePin[Turn, KV]) -> None:
        program_id = active.pin.program_id
        if program_id in self._pins:
            raise ValueError(f"program {program_id} is pinned already")
        self._pins[program_id] = active
        self._offered = None
        self.blocks += active.blocks
        if program_id not in self._waiting_turns:
            self._queue_expiry(active)

    def pop(self, program_id: str) -> ActivePin[Turn, KV] | None:
        active = self._pins.pop(program_id, None)
        if active is not None:
            self._offered = None
            self.blocks -= active.blocks
        return active

    def turn_queued(self, program_id: str) -> None:
        """Suspend the expiry of the program's pin: one of its turns entered the waiting queue."""
        self._waiting_turns[program_id] = self._waiting_turns.get(program_id, 0) + 1

    def turn_dequeued(self, program_id: str) -> None:
        """Resume the expiry once the last of the program's waiting turns has left the queue."""
        remaining = self._waiting_turns[program_id] - 1
        if remaining:
            self._waiting_turns[program_id] = remaining
            return
        del self._waiting_turns[program_id]
        active = self._pins.get(program_id)
        if active is not None:
            self._queue_expiry(active)

    def has_waiting_turn(self, program_id: str) -> bool:
        return program_id in self._waiting_turns

    def next_expiry_ps(self) -> int | None:
        """Return the earliest expiry of the pins that may expire; None if there are none."""
        self._drop_stale()
        return self._expiry[0][0] if self._expiry else None

    def expired(self, now_ps: int) -> Iterator[str]:
        """Yield the programs whose pins have expired. The caller must pop each of them."""
        while True:
            self._drop_stale()
            if not self._expiry or self._expiry[0][0] > now_ps:
                return
            yield heapq.heappop(self._expiry)[2].pin.program_id

    def _queue_expiry(self, active: ActivePin[Turn, KV]) -> None:
        if active.expires_ps is not None:
            self._serial += 1
            heapq.heappush(self._expiry, (active.expires_ps, self._serial, active))
            if len(self._expiry) > max(2 * len(self._pins), MIN_COMPACTED):
                first: dict[str, tuple[int, int, ActivePin[Turn, KV]]] = {}
                for entry in sorted(self._expiry):
                    if self._may_expire(entry[2]):
                        first.setdefault(entry[2].pin.program_id, entry)
                self._expiry = list(first.values())

    def _drop_stale(self) -> None:
        while self._expiry:
            if self._may_expire(self._expiry[0][2]):
                return
            heapq.heappop(self._expiry)

    def _may_expire(self, active: ActivePin[Turn, KV]) -> bool:
        program_id = active.pin.program_id
        return self._pins.get(program_id) is active and program_id not in self._waiting_turns
