"""Programs are paused and resumed on several replicas so that contexts fit (ThunderAgent).

Source: github.com/ThunderAgent-org/ThunderAgent (commit a7eef77), `scheduler/router.py` and
`backend/state.py`. As in the policy of the same name, a program *reasons* while a turn of it waits
or runs, and *acts* between its turns; it is active on one replica, or paused. Active programs use

    used = reasoning tokens + acting_weight * acting tokens + 100 per program

of the KV of their replica, where a program's tokens are its latest turn's. A new program
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
ones, the oldest first, and none is passed over; the latest are paused first.

Departures from the authors' code:
- the engine counts tokens; the authors estimate them from characters. The output counts when a turn
  has ended; they add streamed output every 20 tokens;
- a program with several open turns acts when the last of them has ended, where theirs acts when the
  first has;
- a program ends with its last turn, where theirs ends with a call of `/programs/release`;
- all replicas are healthy, and their KV is known from the start.
Checked against a restatement of the authors' code on 2,000 random worlds each night
(tests/servers/test_router_worlds.py), and once against that code, run with a clock of ours, on
1,000: equal except in these points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.policies.ordered import Ordered
from servers.policies.thunderagent_machine import (
    INTERVAL_S,
    RESUME_AFTER_S,
    ThunderAgentMachine,
    ThunderAgentProgram,
    choose,
)
from servers.routers.base import Replica, RoutedTurn, Router, usable


class PlacedProgram(ThunderAgentProgram):
    def __init__(self, number: int, arrival_s: float) -> None:
        super().__init__(number, arrival_s)
        self.home: int | None = None
        """The replica on which it is active, or was before it was paused."""
        self.held: list[RoutedTurn] = []
        """Its turns that are held back."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ThunderAgent(Router):
    """Programs are paused while contexts exceed the KV of the replicas; every 5 s."""

    name = "thunderagent"
    source = "ThunderAgent-org/ThunderAgent, scheduler/router.py"
    checked: ClassVar[str] = "yes: once against their code, on 1,000 random worlds"
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
        self.period_s = interval_s
        self._by_arrival = order == "arrival"
        self._resume_after_s = resume_after_s
        self._programs: dict[str, PlacedProgram] = {}
        self._paused: Ordered[str, PlacedProgram] = Ordered()
        self._time_outs_s: dict[str, float] = {}
        """When the first held turn of a paused program has waited too long, in order of time."""
        self._machines = [
            ThunderAgentMachine(replica.kv_tokens, self._by_arrival, acting_weight, acting_decay)
            for replica in replicas
        ]

    # Turns --------------------------------------------------------------------------------------

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        program = self._programs.get(turn.program_id)
        if program is None:
            program = self._programs[turn.program_id] = PlacedProgram(turn.id, now_s)
        program.arrived(turn.prompt_tokens)
        if program.turns == 1:
            home = self._room_for_new(program)
            if home is None:
                self._pause(turn.program_id, program)
            else:
                self._activate(turn.program_id, program, home)
        if program.machine is None:
            self._queue(turn.program_id, program)
            program.held.append(turn)
            self._time_outs_s.setdefault(turn.program_id, now_s + self._resume_after_s)
            return None
        return program.home

    def finished(self, turn: RoutedTurn, now_s: float) -> None:
        program = self._programs.get(turn.program_id)
        if program is None:
            return
        if program.finished(turn.prompt_tokens + turn.output_tokens, now_s):
            self._pause(turn.program_id, program)
        elif program.machine is None:
            self._queue(turn.program_id, program)

    def program_ended(self, program_id: str, now_s: float) -> None:
        program = self._programs.pop(program_id, None)
        if program is None:
            return
        self._paused.pop(program_id)
        self._time_outs_s.pop(program_id, None)
        program.pause(program_id)

    def wake_s(self, now_s: float) -> float | None:
        return next(iter(self._time_outs_s.values()), None)

    def resumed(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        """Return turns that were held back for too long."""
        sent: list[tuple[RoutedTurn, int]] = []
        while (due_s := self.wake_s(now_s)) is not None and due_s <= now_s:
            program_id = next(iter(self._time_outs_s))
            program = self._programs[program_id]
            sent += self._resume(program_id, program, self._home_or_other(program))
        return sent

    def tick(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        sent: list[tuple[RoutedTurn, int]] = []
        if len(self._paused):
            rooms = [
                (replica.kv_tokens - self._machines[replica.index].used_at(now_s), replica.index)
                for replica in usable(self.replicas)
            ]
            for program_id, program, home in choose(self._paused, rooms, self._by_arrival):
                sent += self._resume(program_id, program, home)
        for machine in self._machines:
            for program_id in machine.pause_until_fit()[0]:
                self._queue(program_id, self._programs[program_id])
        return sent

    # Choices ------------------------------------------------------------------------------------

    def _room_for_new(self, program: PlacedProgram) -> int | None:
        """Return the replica with the fewest tokens in use where a new program fits."""
        if len(self._paused):
            return None
        best: int | None = None
        fewest = 0
        for replica in usable(self.replicas):
            machine = self._machines[replica.index]
            used = machine.context_tokens
            if (best is None or used < fewest) and machine.has_room(program):
                best, fewest = replica.index, used
        return best

    def _home_or_other(self, program: PlacedProgram) -> int:
        """Return where the program was, or else the replica with the fewest active programs."""
        if program.home is not None and self.replicas[program.home].available:
            return program.home
        indices = [replica.index for replica in usable(self.replicas)]
        return min(indices, key=lambda index: (len(self._machines[index].active), index))

    # Programs -----------------------------------------------------------------------------------

    def _activate(self, program_id: str, program: PlacedProgram, home: int) -> None:
        program.home = home
        self._machines[home].add(program_id, program)

    def _resume(
        self, program_id: str, program: PlacedProgram, home: int
    ) -> list[tuple[RoutedTurn, int]]:
        """Activate a paused program on a replica. Return its turns, to be sent there."""
        self._paused.pop(program_id)
        self._time_outs_s.pop(program_id, None)
        self._activate(program_id, program, home)
        sent, program.held = [(turn, home) for turn in program.held], []
        return sent

    def _pause(self, program_id: str, program: PlacedProgram) -> None:
        program.pause(program_id)
        self._queue(program_id, program)

    def _queue(self, program_id: str, program: PlacedProgram) -> None:
        """Put a paused program in its place, again after each event."""
        place = program.place(self._by_arrival)
        self._paused.put(program_id, program, place, program.needed)
