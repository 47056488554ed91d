"""The turns of an engine or a fleet in virtual time that are due later, to arrive or to be aborted.

In: turns, and an iterator that submits the first turn of each program. Out: the turns that are due.
Turns that are sent to an API server arrive when it has processed their prompts, one at a time, as
vLLM's server tokenizes in a single thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from servers.sim.sequence import Sequence

Due = tuple[int, bool, int, Sequence]
"""Time, whether it is not the first turn of a program, serial number, and turn."""


class DueTurns:
    """Turns by time; at equal times, first turns of programs come first."""

    def __init__(self, token_ps: int = 0) -> None:
        """`token_ps`: time of the API server for each token of a prompt."""
        self._token_ps = token_ps
        self._turns: list[Due] = []
        self._sent: list[Due] = []
        """Turns that the API server has not processed."""
        self._free_ps = 0
        """When the API server has processed the last turn that arrived."""
        self._programs: Iterator[object] = iter(())
        self._submits_first_turn = False
        """Whether the next item of `_programs` is calling `add`."""
        self._serial = 0

    @property
    def next_ps(self) -> int | None:
        if not self._sent:
            return self._turns[0][0] if self._turns else None
        processed_ps = self._processed_ps()
        return min(processed_ps, self._turns[0][0]) if self._turns else processed_ps

    def next_or(self, other_ps: int | None) -> int | None:
        """Return `next_ps` or another time, whichever is earlier; None if there is neither."""
        next_ps = self.next_ps
        if next_ps is None or (other_ps is not None and other_ps < next_ps):
            return other_ps
        return next_ps

    def send(self, at_ps: int, turn: Sequence) -> None:
        """Send a turn to the API server at `at_ps`."""
        self._push(self._sent if self._token_ps else self._turns, at_ps, turn)

    def add(self, at_ps: int, turn: Sequence) -> None:
        self._push(self._turns, at_ps, turn)

    def _push(self, turns: list[Due], at_ps: int, turn: Sequence) -> None:
        self._serial += 1
        heapq.heappush(turns, (at_ps, not self._submits_first_turn, self._serial, turn))

    def take_back(self, turn: Sequence) -> None:
        for turns in (self._turns, self._sent):
            turns[:] = [due for due in turns if due[3] is not turn]
            heapq.heapify(turns)

    def begin(self, programs: Iterable[object]) -> None:
        """Advance `programs`, which must submit the first turn of a program. It is advanced again
        when the last first turn has been taken, so first turns must be in order of time."""
        self._programs = iter(programs)
        self._begin_next()

    def take(self, until_ps: int, handle: Callable[[Sequence], None]) -> None:
        """Call `handle` for the turns that are due at `until_ps`, also those that it adds."""
        while (next_ps := self.next_ps) is not None and next_ps <= until_ps:
            if self._turns and self._turns[0][0] == next_ps:
                _, later, _, turn = heapq.heappop(self._turns)
            else:
                sent_ps, later, _, turn = heapq.heappop(self._sent)
                self._free_ps = next_ps
                turn.processed(sent_ps, next_ps)
            handle(turn)
            if not later:
                self._begin_next()

    def _processed_ps(self) -> int:
        """Return when the API server will have processed the prompt that was sent first. Prompts
        that are sent before it may still be submitted; then it is later."""
        sent_ps, _, _, turn = self._sent[0]
        return max(self._free_ps, sent_ps) + turn.submission.prompt_tokens * self._token_ps

    def _begin_next(self) -> None:
        self._submits_first_turn = True
        next(self._programs, None)
        self._submits_first_turn = False
