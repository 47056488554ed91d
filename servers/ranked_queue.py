"""The waiting queue and the pins, as any engine adapter keeps them around a policy.

Standard library only: the vLLM plug-in imports this too. `Holder` is whatever holds the KV on the
engine's side. Times are in the engine's own unit (picoseconds in virtual time).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from servers.policies.base import Pin, Rank

Item = TypeVar("Item")
Holder = TypeVar("Holder")


class RankedQueue(Generic[Item]):
    """Items by rank, smallest first: O(log n) push, removal and re-rank by lazy deletion."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int]] = []
        self._live: dict[int, tuple[Rank, Item]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: int) -> bool:
        return key in self._live

    def __iter__(self) -> Iterator[Item]:
        """In order of first push, not of rank."""
        return (item for _, item in self._live.values())

    def push(self, key: int, rank: Rank, item: Item) -> None:
        """Add an item, or give it a new rank if its key is queued already."""
        live = self._live.get(key)
        if live is None or live[0] != rank:
            self._live[key] = (rank, item)
            heapq.heappush(self._heap, (rank, key))

    def peek(self) -> Item:
        """The item of smallest rank; IndexError when empty."""
        while True:
            rank, key = self._heap[0]
            live = self._live.get(key)
            if live is not None and live[0] == rank:
                return live[1]
            heapq.heappop(self._heap)

    def remove(self, key: int) -> None:
        """Unknown keys are ignored."""
        self._live.pop(key, None)


@dataclass(slots=True, eq=False)
class Held(Generic[Holder]):
    """A pin and what holds its KV."""

    pin: Pin
    holder: Holder
    blocks: int
    expires: int | None
    """None: never by itself."""


class Pins(Generic[Holder]):
    """At most one pin per program; expiry in order of time.

    A pin whose program has a turn waiting does not expire (Continuum v3, §5.2): the adapter says
    so through `returned` and `left`.
    """

    def __init__(self) -> None:
        self._held: dict[str, Held[Holder]] = {}
        self._expiry: list[tuple[int, int, Held[Holder]]] = []
        self._returned: dict[str, int] = {}
        self._serial = 0
        self.blocks = 0
        """Blocks held by all pins."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, program_id: str) -> bool:
        return program_id in self._held

    def get(self, program_id: str) -> Held[Holder] | None:
        return self._held.get(program_id)

    def held(self) -> list[Held[Holder]]:
        return list(self._held.values())

    def add(self, held: Held[Holder]) -> None:
        program_id = held.pin.program_id
        if program_id in self._held:
            raise ValueError(f"program {program_id} is pinned already")
        self._held[program_id] = held
        self.blocks += held.blocks
        if program_id not in self._returned:
            self._queue_expiry(held)

    def pop(self, program_id: str) -> Held[Holder] | None:
        held = self._held.pop(program_id, None)
        if held is not None:
            self.blocks -= held.blocks
        return held

    def returned(self, program_id: str) -> None:
        """A turn of the program entered the waiting queue."""
        self._returned[program_id] = self._returned.get(program_id, 0) + 1

    def left(self, program_id: str) -> None:
        """A turn of the program left the waiting queue."""
        waiting = self._returned[program_id] - 1
        if waiting:
            self._returned[program_id] = waiting
            return
        del self._returned[program_id]
        held = self._held.get(program_id)
        if held is not None:
            self._queue_expiry(held)

    def is_waiting(self, program_id: str) -> bool:
        return program_id in self._returned

    def next_expiry(self) -> int | None:
        """When the first pin that may expire does; None if none will."""
        self._drop_stale()
        return self._expiry[0][0] if self._expiry else None

    def expired(self, now: int) -> Iterator[str]:
        """Programs whose pin is over and of which no turn waits. The caller pops each."""
        while True:
            self._drop_stale()
            if not self._expiry or self._expiry[0][0] > now:
                return
            yield heapq.heappop(self._expiry)[2].pin.program_id

    def _queue_expiry(self, held: Held[Holder]) -> None:
        if held.expires is not None:
            self._serial += 1
            heapq.heappush(self._expiry, (held.expires, self._serial, held))

    def _drop_stale(self) -> None:
        while self._expiry:
            held = self._expiry[0][2]
            program_id = held.pin.program_id
            if self._held.get(program_id) is held and program_id not in self._returned:
                return
            heapq.heappop(self._expiry)
