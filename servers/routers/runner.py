"""Asks a router about turns, and keeps the accounts that its contract promises.

In: arrivals and ends of turns and programs, with the time. Out: calls of `deliver` with each turn
that the router sends to a replica. Virtual replicas (`servers.sim.front`) and live servers
(`harness.replay.live_router`) share this class, so a router gets the same calls in both. It reads
no clock and does no I/O. Times are seconds on the caller's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from servers.basics.errors import InvalidRouter
from servers.routers.base import Replica, RoutedTurn, Router, Runs

MOST_HELD_S = 3600.0
"""A router that holds turns back while no replica has a turn must send one within this time. This
is twice the longest hold of a published router, half an hour of `thunderagent`."""

BuildRouter = Callable[[Sequence[Replica]], Router]
"""For example a `servers.routing.NamedRouter`."""


class _OpenProgram:
    """A program that has not ended."""

    def __init__(self) -> None:
        self.turns = 0
        self.open_turns = 0
        self.ends = False
        """Whether it ends with its last open turn."""
        self.replicas: set[int] = set()
        """Those that were sent a turn of it."""


def _call(method: Callable[..., Any], *arguments: Any) -> Any:
    return method(*arguments)


class RouterRunner:
    def __init__(
        self,
        build: BuildRouter,
        replicas: Sequence[Replica],
        deliver: Callable[[RoutedTurn], None],
        ask: Callable[..., Any] = _call,
    ) -> None:
        """`deliver`: called once `replica` of the turn is set. `ask`: calls a method of the router
        with its arguments."""
        self.replicas = replicas
        self.router = build(replicas)
        # Without a type: compiled code reads attributes of a typed object where its class has them.
        router: Any = self.router
        self.name: str = router.name
        self._deliver, self._ask = deliver, ask
        self._programs: dict[str, _OpenProgram] = {}
        self.held: set[int] = set()
        """Ids of the turns that have arrived and were not sent."""
        self._arrived = self._in_flight = 0
        self._idle_since_s = 0.0
        """When a turn last ended, or the first of the held turns arrived, if that was later."""

    def turn(
        self,
        program_id: str | None,
        job_id: str | None,
        prompt_tokens: int,
        is_last: bool | None,
        runs: Runs,
        now_s: float,
    ) -> RoutedTurn:
        """Return a turn that has arrived. Pass it to `arrived`. Without a program id, it is a
        program of its own."""
        program_id = program_id or f"turn {self._arrived}"
        program = self._programs.setdefault(program_id, _OpenProgram())
        turn = RoutedTurn(
            self._arrived, program_id, program.turns, now_s, prompt_tokens, is_last, runs, job_id
        )
        self._arrived += 1
        program.turns += 1
        program.open_turns += 1
        return turn

    def arrived(self, turn: RoutedTurn, now_s: float) -> None:
        """Send the turn, or hold it back. Raises InvalidRouter."""
        if not self.held:
            self._idle_since_s = now_s
        self.held.add(turn.id)
        chosen: int | None = self._ask(self.router.route, turn, now_s)
        if chosen is not None:
            self._send(turn, chosen)
        self.resume(now_s)

    def finished(self, turn: RoutedTurn, now_s: float, ends_program: bool = False) -> None:
        """Report the end of a turn, after its true lengths were set. A turn that was held back ends
        because its client gave up. Raises InvalidRouter."""
        self._idle_since_s = now_s
        self.held.discard(turn.id)
        if turn.replica >= 0:
            self.replicas[turn.replica].turns -= 1
            self._in_flight -= 1
        program = self._programs[turn.program_id]
        program.open_turns -= 1
        self._ask(self.router.finished, turn, now_s)
        self._end_program(turn.program_id, program, ends_program, now_s)
        self.resume(now_s)

    def end_program(self, program_id: str, now_s: float) -> None:
        """End a program, with its last open turn if it has any. Raises InvalidRouter."""
        program = self._programs.get(program_id)
        if program is not None:
            self._end_program(program_id, program, True, now_s)
            self.resume(now_s)

    def replicas_of(self, program_id: str) -> list[int]:
        """Return the replicas that were sent turns of a program that has not ended."""
        program = self._programs.get(program_id)
        return [] if program is None else sorted(program.replicas)

    def tick(self, now_s: float) -> None:
        for turn, index in self._ask(self.router.tick, now_s):
            self._send(turn, index)

    def resume(self, now_s: float) -> None:
        """Send the turns that the router now returns. Raises InvalidRouter."""
        for turn, index in self._ask(self.router.resumed, now_s):
            self._send(turn, index)

    def refuse_stuck(self, now_s: float, most_held_s: float) -> None:
        """Raise InvalidRouter if turns are held back, and no replica has had one for so long."""
        if self.held and not self._in_flight and now_s - self._idle_since_s >= most_held_s:
            raise InvalidRouter(
                f"the router {self.name} holds back {len(self.held)} turns forever, although "
                "no replica has a turn; its `resumed` or `tick` must return them"
            )

    def _send(self, turn: RoutedTurn, index: int) -> None:
        if turn.replica < 0 and turn.id not in self.held:
            return  # its client has given up
        if index not in range(len(self.replicas)) or turn.replica >= 0:
            again = " again" if turn.replica >= 0 else ""
            raise InvalidRouter(
                f"the router {self.name} sends a turn of {turn.program_id} to replica "
                f"{index}{again}; there are {len(self.replicas)}, from 0"
            )
        self.held.remove(turn.id)
        turn.replica = index
        self.replicas[index].turns += 1
        self._in_flight += 1
        self._programs[turn.program_id].replicas.add(index)
        self._deliver(turn)

    def _end_program(
        self, program_id: str, program: _OpenProgram, ends: bool, now_s: float
    ) -> None:
        program.ends = program.ends or ends
        if program.ends and not program.open_turns:
            del self._programs[program_id]
            self._ask(self.router.program_ended, program_id, now_s)
