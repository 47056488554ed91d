"""Programs are paused and resumed on several replicas so that contexts fit (ThunderAgent).

Source: github.com/ThunderAgent-org/ThunderAgent (commit a7eef77), `scheduler/router.py` and
`backend/state.py`. As in the policy of the same name, a program *reasons* while a turn of it waits
or runs, and *acts* between its turns; it is active on one replica, or paused. Active programs use

    used = reasoning tokens + acting_weight * acting tokens + 100 per program

of the KV of their replica, where a program's tokens are those of its latest turn. A new program
goes to the replica with the fewest such tokens of those where it fits, if no program is paused;
else it is paused. Every 5 s (`interval_s`)

1. paused programs are chosen whose tokens and 100 each fit into all that is left on all replicas:
   those with a waiting turn first, but for new ones, then new ones, then acting ones, in each group
   the smallest first, as they were when paused. Then the largest of the chosen is placed first, on
   the replica with the most room; one that fits on none stays paused;
2. on each replica that uses more than it has, acting programs are paused, the smallest first, until
   it fits. If they do not suffice, its reasoning programs are paused when their turns end.

A turn that has been held back for 30 min (`resume_after_s`) resumes its program, on the replica
where it was, and a new one on that with the fewest programs. `acting_decay=true` counts the tokens
of an acting program 2^-t times in step 1, t seconds after its turn.

The smallest first starves (issue #46 there). `order="arrival"` replaces size in the choice of
step 1 and in step 2 by the program's arrival: programs with a waiting turn resume before acting
ones, the oldest first, and nobody is passed over; the latest are paused first.

Departures from the authors' code:
- tokens are those of the engine, which the authors estimate from characters. The output counts when
  a turn has ended; they add streamed output every 20 tokens;
- a program with several open turns acts when the last of them has ended, where theirs acts when the
  first has;
- a program ends with its last turn, where theirs ends with a call of `/programs/release`;
- all replicas are healthy, and their KV is known from the start.
Checked against the authors' code, run with a clock of ours, and against a restatement of it on
1,000 random worlds (tests/servers/test_router_worlds.py): equal except in these points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.routers.base import Replica, RoutedTurn, Router, usable

INTERVAL_S = 5.0
RESUME_AFTER_S = 1800.0
PROGRAM_TOKENS = 100
"""Tokens that are added for each program."""


class Program:
    def __init__(self, number: int, arrival_s: float) -> None:
        self.number = number
        """In order of arrival."""
        self.arrival_s = arrival_s
        self.tokens = 0
        """Prompt of its latest turn, and the turn's output once it has ended."""
        self.paused_tokens = 0
        """`tokens` when it was paused."""
        self.turns = 0
        """Number of turns that have arrived."""
        self.open_turns = 0
        """Number of turns that wait or run; 0 while it acts."""
        self.acting_since_s = 0.0
        self.home: int | None = None
        """The replica on which it is active, or was before it was paused."""
        self.paused = False
        self.marked = False
        """Whether it is paused at the end of its turn."""
        self.held: list[RoutedTurn] = []
        """Its turns that are held back."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ThunderAgent(Router):
    """Programs are paused while contexts exceed the KV of the replicas; every 5 s."""

    name = "thunderagent"
    source = "ThunderAgent-org/ThunderAgent, scheduler/router.py"
    checked: ClassVar[str] = "yes: against their code, run on 1,000 random worlds"
    needs_kv = True

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        order: Literal["size", "arrival"] = "size",
        interval_s: float = INTERVAL_S,
        acting_weight: float = 1.0,
        acting_decay: bool = False,
        resume_after_s: float = RESUME_AFTER_S,
    ) -> None:
        super().__init__(replicas)
        if interval_s <= 0 or resume_after_s <= 0:
            raise ValueError("interval_s and resume_after_s are seconds, and must be above 0")
        if acting_weight < 0:
            raise ValueError(f"acting_weight must be at least 0, not {acting_weight}")
        self.period_s = interval_s
        self._by_arrival = order == "arrival"
        self._acting_weight = acting_weight
        self._acting_decay = acting_decay
        self._resume_after_s = resume_after_s
        self._programs: dict[str, Program] = {}
        self._paused: dict[str, Program] = {}
        self._time_outs_s: dict[str, float] = {}
        """When the first held turn of a paused program has waited too long, in order of time."""
        self._active: list[dict[str, Program]] = [{} for _ in replicas]
        """The active programs of each replica."""
        self._reasoning_tokens = [0] * len(replicas)
        self._acting_tokens = [0] * len(replicas)
        """Of the active programs of each replica, by whether they have open turns."""

    # Turns --------------------------------------------------------------------------------------

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        program = self._programs.get(turn.program_id)
        if program is None:
            program = self._programs[turn.program_id] = Program(turn.id, now_s)
        self._count(program, -1)
        program.turns += 1
        program.open_turns += 1
        program.tokens = turn.prompt_tokens
        self._count(program, 1)
        if program.turns == 1:
            home = self._room_for_new(program)
            if home is None:
                self._add_paused(turn.program_id, program)
            else:
                self._activate(turn.program_id, program, home)
        if program.paused:
            program.held.append(turn)
            self._time_outs_s.setdefault(turn.program_id, now_s + self._resume_after_s)
            return None
        return program.home

    def finished(self, turn: RoutedTurn, now_s: float) -> None:
        program = self._programs.get(turn.program_id)
        if program is None:
            return
        self._count(program, -1)
        program.open_turns -= 1
        program.tokens = turn.prompt_tokens + turn.output_tokens
        self._count(program, 1)
        if program.open_turns:
            return
        program.acting_since_s = now_s
        if program.marked and not program.paused:
            self._pause(turn.program_id, program)

    def program_ended(self, program_id: str, now_s: float) -> None:
        program = self._programs.pop(program_id, None)
        if program is None:
            return
        self._paused.pop(program_id, None)
        self._time_outs_s.pop(program_id, None)
        self._count(program, -1)
        if program.home is not None:
            self._active[program.home].pop(program_id, None)

    def wake_s(self, now_s: float) -> float | None:
        return next(iter(self._time_outs_s.values()), None)

    def resumed(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        """Return turns that were held back for too long."""
        sent: list[tuple[RoutedTurn, int]] = []
        while (due_s := self.wake_s(now_s)) is not None and due_s <= now_s:
            program_id = next(iter(self._time_outs_s))
            program = self._paused[program_id]
            sent += self._resume(program_id, program, self._home_or_other(program))
        return sent

    def tick(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        sent: list[tuple[RoutedTurn, int]] = []
        if self._paused:
            for program_id, program, home in self._choose(now_s):
                sent += self._resume(program_id, program, home)
        for index in range(len(self.replicas)):
            if self._room(index) < 0:
                self._pause_until_it_fits(index)
        return sent

    # Choices ------------------------------------------------------------------------------------

    def _room_for_new(self, program: Program) -> int | None:
        """Return the replica with the fewest tokens in use where a new program fits."""
        if self._paused:
            return None
        best: int | None = None
        fewest = 0
        for replica in usable(self.replicas):
            index = replica.index
            used = self._active_tokens(index)
            if best is not None and used >= fewest:
                continue
            if self._room(index) >= program.tokens + PROGRAM_TOKENS:
                best, fewest = index, used
        return best

    def _home_or_other(self, program: Program) -> int:
        """Return where the program was, or else the replica with the fewest active programs."""
        if program.home is not None and self.replicas[program.home].available:
            return program.home
        indices = [replica.index for replica in usable(self.replicas)]
        return min(indices, key=lambda index: (len(self._active[index]), index))

    def _choose(self, now_s: float) -> list[tuple[str, Program, int]]:
        """Return paused programs that fit, and the replica for each (best fit decreasing)."""
        indices = [replica.index for replica in usable(self.replicas)]
        rooms = [(self._room_at(index, now_s), index) for index in indices]
        rooms = [item for item in rooms if item[0] > PROGRAM_TOKENS]
        left, chosen = sum(room for room, _ in rooms), list[tuple[str, Program]]()
        for program_id, program in sorted(self._paused.items(), key=self._resume_rank):
            needed = program.tokens + PROGRAM_TOKENS
            if needed <= left:
                chosen.append((program_id, program))
                left -= needed
            elif self._by_arrival:
                break
        if not self._by_arrival:
            chosen.sort(key=lambda item: -item[1].tokens)
        placed = []
        for program_id, program in chosen:
            rooms.sort(key=lambda item: -item[0])  # of equal rooms, the one that was first stays so
            needed = program.tokens + PROGRAM_TOKENS
            if not rooms:
                break
            room, home = rooms[0]
            if needed > room:
                if self._by_arrival:
                    break
                continue
            placed.append((program_id, program, home))
            if room - needed > PROGRAM_TOKENS:
                rooms[0] = room - needed, home
            else:
                del rooms[0]
        return placed

    def _resume_rank(self, item: tuple[str, Program]) -> tuple[int, float]:
        program = item[1]
        if self._by_arrival:
            return (0 if program.held else 1), program.arrival_s
        group = 1 if program.turns == 1 else 0 if program.open_turns else 2
        return group, program.paused_tokens

    def _pause_until_it_fits(self, index: int) -> None:
        active = sorted(self._active[index].items(), key=lambda item: item[1].number)
        acting = [item for item in active if not item[1].open_turns]
        for program_id, program in sorted(acting, key=self._pause_rank):
            self._pause(program_id, program)
            if self._room(index) >= 0:
                return
        for _, program in active:
            program.marked = program.marked or program.open_turns > 0

    def _pause_rank(self, item: tuple[str, Program]) -> float:
        return -item[1].arrival_s if self._by_arrival else item[1].tokens

    # Accounts -----------------------------------------------------------------------------------

    def _count(self, program: Program, sign: int) -> None:
        """Add the tokens of an active program to the account of its replica, or take them away."""
        if program.home is None or program.paused:
            return
        tokens = self._reasoning_tokens if program.open_turns else self._acting_tokens
        tokens[program.home] += sign * program.tokens

    def _active_tokens(self, index: int) -> int:
        acting = self._acting_weight * self._acting_tokens[index]
        return int(self._reasoning_tokens[index] + acting)

    def _room(self, index: int) -> int:
        """Return the tokens that are left on a replica; negative if it uses more than it has."""
        used = self._active_tokens(index) + len(self._active[index]) * PROGRAM_TOKENS
        return self.replicas[index].kv_tokens - used

    def _room_at(self, index: int, now_s: float) -> int:
        """Return the same as resumes count it."""
        if not self._acting_decay:
            return self._room(index)
        acting = 0.0
        for program in self._active[index].values():
            if not program.open_turns:
                acting += program.tokens * 2.0 ** (program.acting_since_s - now_s)
        used = (
            int(self._reasoning_tokens[index] + acting) + len(self._active[index]) * PROGRAM_TOKENS
        )
        return self.replicas[index].kv_tokens - used

    def _activate(self, program_id: str, program: Program, home: int) -> None:
        program.home, program.paused = home, False
        self._active[home][program_id] = program
        self._count(program, 1)

    def _resume(self, program_id: str, program: Program, home: int) -> list[tuple[RoutedTurn, int]]:
        """Activate a paused program on a replica. Return its turns, to be sent there."""
        del self._paused[program_id]
        self._time_outs_s.pop(program_id, None)
        self._activate(program_id, program, home)
        sent, program.held = [(turn, home) for turn in program.held], []
        return sent

    def _pause(self, program_id: str, program: Program) -> None:
        self._count(program, -1)
        if program.home is not None:
            del self._active[program.home][program_id]
        self._add_paused(program_id, program)

    def _add_paused(self, program_id: str, program: Program) -> None:
        program.paused, program.marked = True, False
        program.paused_tokens = program.tokens
        self._paused[program_id] = program
