"""The turns of an engine or a fleet in virtual time that are due later, to arrive or to be aborted.

In: turns, and an iterator that submits the first turn of each program. Out: the turns that are due.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from servers.sim.sequence import Sequence


class DueTurns:
    """Turns by time; at equal times, first turns of programs come first."""

    def __init__(self) -> None:
        self._turns: list[tuple[int, bool, int, Sequence]] = []
        self._programs: Iterator[object] = iter(())
        self._submits_first_turn = False
        """Whether the next item of `_programs` is calling `add`."""
        self._serial = 0

    @property
    def next_ps(self) -> int | None:
        return self._turns[0][0] if self._turns else None

    def next_or(self, other_ps: int | None) -> int | None:
        """Return `next_ps` or another time, whichever is earlier; None if there is neither."""
        next_ps = self.next_ps
        if next_ps is None or (other_ps is not None and other_ps < next_ps):
            return other_ps
        return next_ps

    def add(self, at_ps: int, turn: Sequence) -> None:
        self._serial += 1
        heapq.heappush(self._turns, (at_ps, not self._submits_first_turn, self._serial, turn))

    def take_back(self, turn: Sequence) -> None:
        self._turns = [due for due in self._turns if due[3] is not turn]
        heapq.heapify(self._turns)

    def begin(self, programs: Iterable[object]) -> None:
        """Advance `programs`, which must submit the first turn of a program. It is advanced again
        when the last first turn has been taken, so first turns must be in order of time."""
        self._programs = iter(programs)
        self._begin_next()

    def take(self, until_ps: int, handle: Callable[[Sequence], None]) -> None:
        """Call `handle` for the turns that are due at `until_ps`, also those that it adds."""
        while self._turns and self._turns[0][0] <= until_ps:
            _, later, _, turn = heapq.heappop(self._turns)
            handle(turn)
            if not later:
                self._begin_next()

    def _begin_next(self) -> None:
        self._submits_first_turn = True
        next(self._programs, None)
        self._submits_first_turn = False
