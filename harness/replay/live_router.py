"""Asks a router about the turns of live servers (docs/reference/routers.md, Live).

In: turns as they arrive and end, and load reports of the servers. Out: the server of each turn,
as soon as the router sends it. Times in seconds on the caller's clock. A router is asked in the
same order of calls as by `servers.sim.fleet` in virtual time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from servers.basics.errors import InvalidRouter
from servers.routers.base import Replica, RoutedTurn, Router, Runs

AVOIDED_S = 30.0
"""A server is not available for this time after a failed turn, unless a later turn succeeds."""
FASTEST_REPORT_S = 0.1
"""Time between load reports for a router that wants a fresh one for each decision."""
MOST_HELD_S = 3600.0
"""A router that holds turns back while no turn is served must send one within this time."""

LEAST_WAIT_S = 0.001
"""A router that wants to wake up in the past is not called more often."""

BuildRouter = Callable[[Sequence[Replica]], Router]
"""For example a `servers.routing.NamedRouter`."""
Report = Callable[[Replica], Awaitable[None]]
"""Updates the load of a replica, if its server answers."""
T = TypeVar("T")


@dataclass(slots=True)
class _Program:
    """A program that has not ended."""

    turns: int = 0
    open_turns: int = 0
    ended: bool = False
    """Whether it ends with its last open turn."""
    replicas: set[int] = field(default_factory=set)
    """Those that were sent a turn of it."""


class LiveRouter:
    def __init__(
        self,
        build: BuildRouter,
        replicas: Sequence[Replica],
        now_s: Callable[[], float],
        report: Report | None = None,
        most_held_s: float = MOST_HELD_S,
    ) -> None:
        self.replicas = replicas
        self.router = build(self.replicas)
        self._now_s = now_s
        self._report = report
        self._most_held_s = most_held_s
        self._programs: dict[str, _Program] = {}
        self._held: dict[int, asyncio.Future[None]] = {}
        """By id of the turn."""
        self._avoided_until_s: dict[int, float] = {}
        """By replica that is not available."""
        self._arrived = self._in_flight = 0
        self._idle_since_s = 0.0
        """When a turn last ended, or the first of the held turns arrived, if that was later."""
        self._wake_s: float | None = None
        """When `_alarm` wakes the router up."""
        self._alarm: asyncio.TimerHandle | None = None
        self._error: InvalidRouter | None = None
        self._failed = asyncio.Event()

    def turn(
        self,
        program_id: str,
        job_id: str,
        prompt_tokens: int,
        runs: Runs = (),
        is_last: bool | None = None,
    ) -> RoutedTurn:
        """Return a turn that has arrived. Pass it to `route`."""
        program = self._programs.setdefault(program_id, _Program())
        turn = RoutedTurn(
            self._arrived,
            program_id,
            program.turns,
            self._now_s(),
            prompt_tokens,
            is_last,
            runs,
            job_id,
        )
        self._arrived += 1
        program.turns += 1
        program.open_turns += 1
        return turn

    async def route(self, turn: RoutedTurn) -> float:
        """Wait until the router sends the turn, and set `turn.replica`. Return for how long the
        router held it back.

        Call `finished` when the turn ends, unless this raises. Raises InvalidRouter.
        """
        try:
            chosen = self._ask(self.router.route, turn, self._time())
            if chosen is None:
                await self._wait(turn)
                return self._now_s() - turn.arrival_s
            self._send(turn, chosen)
            self._resume(self._time())
        except BaseException:
            self.finished(turn)
            raise
        return 0.0

    def finished(
        self, turn: RoutedTurn, *, succeeded: bool | None = None, ends_program: bool = False
    ) -> list[int]:
        """Report the end of a turn, after its true lengths were set. Return the replicas that
        served other turns of the program, if the program ends too.

        `succeeded`: False makes its replica unavailable for AVOIDED_S; None: the end says nothing
        about the server.
        """
        now_s = self._idle_since_s = self._time()
        if turn.replica >= 0:
            self.replicas[turn.replica].turns -= 1
            self._in_flight -= 1
            self._set_available(turn.replica, succeeded, now_s)
        program = self._programs[turn.program_id]
        program.open_turns -= 1
        program.ended = program.ended or ends_program
        try:
            self._ask(self.router.finished, turn, now_s)
            if program.ended and not program.open_turns:
                self._end(turn.program_id, now_s)
            self._resume(now_s)
        except InvalidRouter as error:
            self._fail(error)
        return sorted(program.replicas - {turn.replica})

    def program_ended(self, program_id: str) -> list[int]:
        """Report the end of a program, of which turns may still run. Return the replicas that
        served turns of it."""
        program = self._programs.get(program_id)
        if program is None:
            return []
        program.ended = True
        if not program.open_turns:
            now_s = self._time()
            try:
                self._end(program_id, now_s)
                self._resume(now_s)
            except InvalidRouter as error:
                self._fail(error)
        return sorted(program.replicas)

    async def run(self) -> NoReturn:
        """Call the router's `tick` and read load reports, until cancelled.

        Raises InvalidRouter if the router fails in a call that is not about a certain turn, or
        holds turns back for too long. The turns that it holds back then fail with the same error.
        """
        duties: list[Coroutine[Any, Any, NoReturn]] = [self._raise_failure(), self._refuse_stuck()]
        if self.router.period_s is not None:
            duties.append(self._tick(self.router.period_s))
        if self.router.report_s is not None and self._report is not None:
            every_s = max(self.router.report_s, FASTEST_REPORT_S)
            duties += [self._read_reports(self._report, each, every_s) for each in self.replicas]
        tasks = [asyncio.create_task(duty) for duty in duties]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if self._alarm is not None:
                self._alarm.cancel()
        raise AssertionError("a duty of the router has ended")

    # Duties -------------------------------------------------------------------------------------

    async def _raise_failure(self) -> NoReturn:
        await self._failed.wait()
        self._failed.clear()
        raise self._error or AssertionError("no error")

    async def _tick(self, period_s: float) -> NoReturn:
        """Call `tick` at whole multiples of its period. Ticks that are missed are left out."""
        while True:
            past = math.floor(self._now_s() / period_s + 1e-6)
            await asyncio.sleep(max(past + 1, 1) * period_s - self._now_s())
            try:
                now_s = self._time()
                self._send_all(self._ask(self.router.tick, now_s))
                self._set_alarm(now_s)
            except InvalidRouter as error:
                self._fail(error)

    async def _read_reports(self, report: Report, replica: Replica, every_s: float) -> NoReturn:
        while True:
            await report(replica)
            await asyncio.sleep(every_s)

    async def _refuse_stuck(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._most_held_s / 8)
            idle_s = self._now_s() - self._idle_since_s
            if self._held and not self._in_flight and idle_s > self._most_held_s:
                self._fail(
                    InvalidRouter(
                        f"the router {self.router.name} holds back {len(self._held)} turns for "
                        f"ever: no server has had a turn for {idle_s:.0f} s; its `resumed` or "
                        "`tick` must return them"
                    )
                )

    # Decisions ----------------------------------------------------------------------------------

    def _ask(self, call: Callable[..., T], *arguments: Any) -> T:
        """Raises InvalidRouter for any error of the router."""
        try:
            return call(*arguments)
        except Exception as error:
            name = getattr(call, "__name__", "call")
            raise InvalidRouter(
                f"the router {self.router.name} failed in `{name}`: {type(error).__name__}: {error}"
            ) from error

    async def _wait(self, turn: RoutedTurn) -> None:
        if not self._held:
            self._idle_since_s = turn.arrival_s
        self._held[turn.id] = sent = asyncio.get_running_loop().create_future()
        try:
            self._resume(turn.arrival_s)
            await sent
        finally:
            self._held.pop(turn.id, None)

    def _resume(self, now_s: float) -> None:
        """Send the turns that the router now returns. Raises InvalidRouter."""
        self._send_all(self._ask(self.router.resumed, now_s))
        self._set_alarm(now_s)

    def _set_alarm(self, now_s: float) -> None:
        """Resume turns when the router wakes up."""
        wake_s = self._ask(self.router.wake_s, now_s)
        if wake_s == self._wake_s:
            return
        self._wake_s = wake_s
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if wake_s is not None:
            delay_s = max(wake_s - now_s, LEAST_WAIT_S)
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self._woken)

    def _woken(self) -> None:
        self._wake_s = None
        try:
            self._resume(self._time())
        except InvalidRouter as error:
            self._fail(error)

    def _send_all(self, resumed: Sequence[tuple[RoutedTurn, int]]) -> None:
        """Send turns that were held back. Those of which the client has given up are left out."""
        for turn, index in resumed:
            sent = self._held.get(turn.id)
            if sent is None and turn.replica < 0:
                continue
            self._send(turn, index)
            if sent is not None and not sent.done():
                sent.set_result(None)

    def _send(self, turn: RoutedTurn, index: int) -> None:
        if index not in range(len(self.replicas)) or turn.replica >= 0:
            again = " again" if turn.replica >= 0 else ""
            raise InvalidRouter(
                f"the router {self.router.name} sends a turn of {turn.program_id} to replica "
                f"{index}{again}; there are {len(self.replicas)}, from 0"
            )
        turn.replica = self.replicas[index].index
        self.replicas[turn.replica].turns += 1
        self._in_flight += 1
        self._programs[turn.program_id].replicas.add(turn.replica)

    def _end(self, program_id: str, now_s: float) -> None:
        del self._programs[program_id]
        self._ask(self.router.program_ended, program_id, now_s)

    def _fail(self, error: InvalidRouter) -> None:
        """Fail the turns that are held back, and `run`."""
        for sent in self._held.values():
            if not sent.done():
                sent.set_exception(error)
        self._error = error
        self._failed.set()

    def _set_available(self, index: int, succeeded: bool | None, now_s: float) -> None:
        if succeeded:
            self._avoided_until_s.pop(index, None)
            self.replicas[index].available = True
        elif succeeded is not None:
            self._avoided_until_s[index] = now_s + AVOIDED_S
            self.replicas[index].available = False

    def _time(self) -> float:
        """Return the time, after replicas that were avoided until now are available again."""
        now_s = self._now_s()
        if self._avoided_until_s:
            for index, until_s in list(self._avoided_until_s.items()):
                if until_s <= now_s:
                    self._set_available(index, True, now_s)
        return now_s
