"""Programs as ThunderAgent counts them, the machines where they are active, and who resumes.

The policy `thunderagent` has one machine, and the router of that name one for each replica.
`servers.policies.thunderagent` has the rules and their source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from servers.policies.ordered import Ordered, Place

INTERVAL_S = 5.0
RESUME_AFTER_S = 1800.0
PROGRAM_TOKENS = 100
"""Tokens that are added for each program."""


class ThunderAgentProgram:
    def __init__(self, number: int, arrival_s: float) -> None:
        self.number = number
        """In order of arrival."""
        self.arrival_s = arrival_s
        self.machine: ThunderAgentMachine | None = None
        """Where it is active; None while it is paused."""
        self.tokens = 0
        """Prompt of its latest turn, and the turn's output once it has ended."""
        self.paused_tokens = 0
        """`tokens` when it was paused."""
        self.turns = 0
        """Number of turns that have arrived."""
        self.open_turns = 0
        """Number of turns that wait or run; 0 while it acts."""
        self.acting_since_s = 0.0
        self.marked = False
        """Whether it is paused at the end of its turn."""

    @property
    def needed(self) -> int:
        return self.tokens + PROGRAM_TOKENS

    def arrived(self, tokens: int) -> None:
        self.turns += 1
        self._set(self.open_turns + 1, tokens)

    def finished(self, tokens: int, now_s: float) -> bool:
        """Record the end of a turn. Return whether the program is to be paused now."""
        self._set(self.open_turns - 1, tokens)
        if self.open_turns:
            return False
        self.acting_since_s = now_s
        return self.marked

    def recount(self, tokens: int) -> None:
        """Correct the tokens of a program with an open turn."""
        self._set(self.open_turns, tokens)

    def pause(self, program_id: str) -> None:
        if self.machine is not None:
            self.machine.count(self, -1)
            del self.machine.active[program_id]
        self.machine, self.marked, self.paused_tokens = None, False, self.tokens

    def place(self, by_arrival: bool) -> Place:
        """Return the place of a paused program in the order in which they resume."""
        if by_arrival:
            return (0.0 if self.open_turns else 1.0), self.arrival_s
        group = 1.0 if self.turns == 1 else 0.0 if self.open_turns else 2.0
        return group, float(self.paused_tokens)

    def _set(self, open_turns: int, tokens: int) -> None:
        if self.machine is not None:
            self.machine.count(self, -1)
        self.open_turns, self.tokens = open_turns, tokens
        if self.machine is not None:
            self.machine.count(self, 1)


P = TypeVar("P", bound=ThunderAgentProgram)


class ThunderAgentMachine:
    def __init__(
        self,
        kv_tokens: float,
        by_arrival: bool,
        acting_weight: float,
        acting_decay: bool,
        pause_above: float = 1.0,
        pause_to: float = 1.0,
    ) -> None:
        """`pause_above` and `pause_to` are shares of the KV."""
        if acting_weight < 0:
            raise ValueError(f"acting_weight must be at least 0, not {acting_weight}")
        self.active: dict[str, ThunderAgentProgram] = {}
        self._kv_tokens = kv_tokens
        self._by_arrival = by_arrival
        self._acting_weight = acting_weight
        self._acting_decay = acting_decay
        self._pause_above, self._pause_to = pause_above * kv_tokens, pause_to * kv_tokens
        self._reasoning_tokens = self._acting_tokens = 0
        """Of the active programs, by whether they have open turns."""

    def count(self, program: ThunderAgentProgram, sign: int) -> None:
        """Add the tokens of an active program with sign 1, and take them away with -1."""
        if program.open_turns:
            self._reasoning_tokens += sign * program.tokens
        else:
            self._acting_tokens += sign * program.tokens

    def add(self, program_id: str, program: ThunderAgentProgram) -> None:
        program.machine = self
        self.active[program_id] = program
        self.count(program, 1)

    @property
    def context_tokens(self) -> int:
        return int(self._reasoning_tokens + self._acting_weight * self._acting_tokens)

    @property
    def used(self) -> int:
        return self.context_tokens + len(self.active) * PROGRAM_TOKENS

    def used_at(self, now_s: float) -> int:
        """Return the tokens in use as resumes count them."""
        if not self._acting_decay:
            return self.used
        acting = 0.0
        for program in self.active.values():
            if not program.open_turns:
                acting += program.tokens * 2.0 ** (program.acting_since_s - now_s)
        return int(self._reasoning_tokens + acting) + len(self.active) * PROGRAM_TOKENS

    def has_room(self, program: ThunderAgentProgram) -> bool:
        return program.needed <= self._kv_tokens - self.used

    def pause_until_fit(self) -> tuple[list[str], bool]:
        """Pause acting programs until the contexts fit, and mark reasoning ones if that is not
        enough. Return the paused programs, and whether any other was marked."""
        paused: list[str] = []
        if self.used <= self._pause_above:
            return paused, False
        active = sorted(self.active.items(), key=lambda item: item[1].number)
        acting = [item for item in active if not item[1].open_turns]
        by_arrival = self._by_arrival
        acting.sort(key=lambda item: -item[1].arrival_s if by_arrival else item[1].tokens)
        for program_id, program in acting:
            program.pause(program_id)
            paused.append(program_id)
            if self.used <= self._pause_to:
                return paused, False
        unmarked = [p for _, p in active if p.open_turns and not p.marked]
        for program in unmarked:
            program.marked = True
        return paused, len(unmarked) > 0


def choose(
    paused: Ordered[str, P], rooms: Sequence[tuple[float, int]], by_arrival: bool
) -> list[tuple[str, P, int]]:
    """Return the paused programs that resume, with the index of a machine for each. `rooms` has the
    tokens that are left on each machine, and its index. The size of a paused program is what it
    needs, so that those which do not fit are passed over in blocks."""
    left_on = [room for room in rooms if room[0] > PROGRAM_TOKENS]
    left = sum(room for room, _ in left_on)
    chosen: list[tuple[str, P]] = []
    entry = paused.next_within(math.inf if by_arrival else left)
    while entry is not None and entry.size <= left:
        chosen.append((entry.key, entry.item))
        left -= entry.size
        entry = paused.next_within(math.inf if by_arrival else left, entry)
    if not by_arrival:
        chosen.sort(key=lambda item: -item[1].tokens)
    placed: list[tuple[str, P, int]] = []
    for program_id, program in chosen:
        needed = program.needed
        left_on.sort(key=lambda item: -item[0])  # of equal rooms, the one that was first stays so
        if not left_on:
            break
        room, index = left_on[0]
        if needed > room:
            if by_arrival:
                break
            continue
        placed.append((program_id, program, index))
        if room - needed > PROGRAM_TOKENS:
            left_on[0] = room - needed, index
        else:
            del left_on[0]
    return placed
