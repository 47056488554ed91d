"""Asks a router about the turns of live servers (docs/reference/routers.md, Live).

In: turns as they arrive and end, and load reports of the servers. Out: the server of each turn,
as soon as the router sends it. Times in seconds on the caller's clock.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from servers.basics.errors import InvalidRouter
from servers.routers.base import Replica, RoutedTurn, Runs
from servers.routers.runner import MOST_HELD_S, BuildRouter, RouterRunner

AVOIDED_S = 30.0
"""A server is not available for this time after a failed turn, unless a later turn succeeds."""
FASTEST_REPORT_S = 0.1
"""Time between load reports for a router that wants a fresh one for each decision."""

LEAST_WAIT_S = 0.001
"""A router that wants to wake up in the past is not called more often."""

Report = Callable[[Replica], Awaitable[None]]
"""Updates the load of a replica, if its server answers."""


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
        self._runner = RouterRunner(build, replicas, self._sent, self._ask)
        self.router = self._runner.router
        self._now_s = now_s
        self._report = report
        self._most_held_s = most_held_s
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """By id of a turn that was not sent."""
        self._avoided_until_s: dict[int, float] = {}
        """By replica that is not available."""
        self._wake_s: float | None = None
        """When `_alarm` wakes the router up."""
        self._alarm: asyncio.TimerHandle | None = None
        self._errors: asyncio.Queue[InvalidRouter] = asyncio.Queue()

    def turn(
        self,
        program_id: str,
        job_id: str,
        prompt_tokens: int,
        runs: Runs = (),
        is_last: bool | None = None,
    ) -> RoutedTurn:
        """Return a turn that has arrived. Pass it to `route`."""
        now_s = self._now_s()
        return self._runner.turn(program_id, job_id, prompt_tokens, is_last, runs, now_s)

    async def route(self, turn: RoutedTurn) -> float:
        """Wait until the router sends the turn, and set `turn.replica`. Return for how long the
        router held it back.

        Call `finished` when the turn ends, unless this raises. Raises InvalidRouter.
        """
        self._waiting[turn.id] = sent = asyncio.get_running_loop().create_future()
        try:
            now_s = self._time()
            self._runner.arrived(turn, now_s)
            self._set_alarm(now_s)
            if sent.done():
                return 0.0
            await sent
        except BaseException:
            self._waiting.pop(turn.id, None)
            self.finished(turn)
            raise
        return self._now_s() - turn.arrival_s

    def finished(
        self, turn: RoutedTurn, *, succeeded: bool | None = None, ends_program: bool = False
    ) -> list[int]:
        """Report the end of a turn, after its true lengths were set. Return the replicas that
        served other turns of the program.

        `succeeded`: False makes its replica unavailable for AVOIDED_S; None: the end says nothing
        about the server.
        """
        replicas = self._runner.replicas_of(turn.program_id)
        with self._decisions() as now_s:
            if turn.replica >= 0:
                self._set_available(turn.replica, succeeded, now_s)
            self._runner.finished(turn, now_s, ends_program)
        return [index for index in replicas if index != turn.replica]

    def program_ended(self, program_id: str) -> list[int]:
        """Report the end of a program, whose turns may still run. Return the replicas that
        served turns of it."""
        replicas = self._runner.replicas_of(program_id)
        with self._decisions() as now_s:
            self._runner.end_program(program_id, now_s)
        return replicas

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
        raise await self._errors.get()

    async def _tick(self, period_s: float) -> NoReturn:
        """Call `tick` at whole multiples of its period. Ticks that are missed are left out."""
        while True:
            past = math.floor(self._now_s() / period_s + 1e-6)
            await asyncio.sleep(max(past + 1, 1) * period_s - self._now_s())
            with self._decisions() as now_s:
                self._runner.tick(now_s)

    async def _read_reports(self, report: Report, replica: Replica, every_s: float) -> NoReturn:
        while True:
            await report(replica)
            await asyncio.sleep(every_s)

    async def _refuse_stuck(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._most_held_s / 8)
            with self._decisions() as now_s:
                self._runner.refuse_stuck(now_s, self._most_held_s)

    # Decisions ----------------------------------------------------------------------------------

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Raises InvalidRouter for any error of the router."""
        try:
            return call(*arguments)
        except Exception as error:
            name = getattr(call, "__name__", "call")
            raise InvalidRouter(
                f"the router {self.router.name} failed in `{name}`: {type(error).__name__}: {error}"
            ) from error

    @contextmanager
    def _decisions(self) -> Iterator[float]:
        """Return the time of decisions that concern no turn in particular. If the router fails in
        them, so do the turns that it holds back, and `run`."""
        now_s = self._time()
        try:
            yield now_s
            self._set_alarm(now_s)
        except InvalidRouter as error:
            for sent in self._waiting.values():
                if not sent.done():
                    sent.set_exception(error)
            self._errors.put_nowait(error)

    def _sent(self, turn: RoutedTurn) -> None:
        sent = self._waiting.pop(turn.id)
        if not sent.done():
            sent.set_result(None)

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
        with self._decisions() as now_s:
            self._runner.resume(now_s)

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
