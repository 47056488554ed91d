"""Several replicas under one clock, behind a router.

In: turns with their submission times, a router, and an engine per replica. Out: calls of `on_end`.
An engine computes many steps at once if nothing is due that changes its batch. A turn that is sent
to it in the meantime ends its batch with the step that is being computed then (`Engine.interrupt`),
so that all decisions are as in single steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from servers.basics.clock import seconds
from servers.profiles import Profile
from servers.routers.base import Replica
from servers.routers.runner import MOST_HELD_S, BuildRouter
from servers.sim.due import DueTurns
from servers.sim.engine import Engine, OnEnd
from servers.sim.fleet_usage import FleetUsage
from servers.sim.front import Front
from servers.sim.sequence import EngineUsage, Submission, refuse_unfit
from servers.sim.sequence import Sequence as Served

BuildEngine = Callable[..., Engine]
"""For example `functools.partial(Engine, policy, profile, limits)`; called with `on_end`."""


class Fleet:
    """Submit turns, then call `run`. It has the methods of an `Engine` that a replay uses."""

    def __init__(
        self,
        build_router: BuildRouter,
        engines: Sequence[BuildEngine],
        *,
        on_end: OnEnd,
        behind: int | None = None,
    ) -> None:
        """`behind`: number of engines, from the first, that are behind the router; None: all."""
        self.engines = [build(on_end=self._ended) for build in engines]
        self.profile: Profile = self.engines[0].profile
        self.now_ps = 0
        self._usage = FleetUsage(self.engines)
        self._front = Front(
            build_router,
            self.engines[:behind],
            self._usage,
            first=0,
            tree=len(self.engines),
            on_sent=self._interrupt,
        )
        self._fronts = [self._front]
        self._on_end = on_end
        self._arrivals = DueTurns()
        self._due: list[tuple[int, int]] = []
        """When engines end their batch or wake up, with those that have changed since."""
        self._due_ps: list[int | None] = [None] * len(self.engines)
        self._begin: set[int] = set()
        """Engines that begin a batch now."""
        self._stopped = False

    @property
    def replicas(self) -> list[Replica]:
        """The replicas, as the router sees them."""
        return self._front.replicas

    @property
    def trees(self) -> int:
        """Number of trees of contents: one of each replica, and one of the router."""
        return len(self.engines) + 1

    @property
    def steps(self) -> int:
        return sum(engine.steps for engine in self.engines)

    @property
    def strides(self) -> int:
        return sum(engine.strides for engine in self.engines)

    def submit(self, submission: Submission, at_ps: int) -> Served:
        """Queue a turn for arrival at `at_ps`. Raises InvalidInput if it could never run."""
        limits = self.engines[0].scheduler.limits
        refuse_unfit(submission, self.profile, limits.step_tokens)
        served = Served(submission, at_ps)
        self._arrivals.add(at_ps, served)
        return served

    def take_back(self, served: Served) -> None:
        """Forget a turn that has not arrived."""
        self._arrivals.take_back(served)

    def end_program(self, program_id: str) -> None:
        """End a program that submitted no turn with `is_last`."""
        for front in self._fronts:
            front.end_program(program_id)

    def usage(self) -> EngineUsage:
        """Return the sums over all replicas; turns that are held back wait."""
        held = sum(len(front.runner.held) for front in self._fronts)
        return self._usage.total(seconds(self.now_ps), held)

    def stop(self) -> None:
        self._stopped = True

    def run(self, programs: Iterable[object] = ()) -> None:
        """As `Engine.run`. Raises InvalidRouter."""
        self._arrivals.begin(programs)
        while not self._stopped and (now_ps := self._next_ps()) is not None:
            self.now_ps = now_ps
            for front in self._fronts:
                front.set_clock(now_ps)
            self._end_batches()
            for front in self._fronts:
                front.call_if_due()
            self._arrivals.take(now_ps, self._arrive)
            self._begin_batches()

    # Turns --------------------------------------------------------------------------------------

    def _arrive(self, served: Served) -> None:
        self._front.arrive(served)

    def _ended(self, served: Served) -> None:
        self._usage.changed(served.replica)
        self._front.ended(served)
        self._on_end(served)

    # The clock ----------------------------------------------------------------------------------

    def _next_ps(self) -> int | None:
        """Return the time of the next change; None at the end."""
        due = self._due
        while due and self._due_ps[due[0][1]] != due[0][0]:
            heapq.heappop(due)
        times = [due[0][0]] if due else []
        if (arrival_ps := self._arrivals.next_ps) is not None:
            times.append(arrival_ps)
        is_idle = not times
        if is_idle and not any(front.turns for front in self._fronts):
            return None
        for front in self._fronts:
            front.add_times(times)
        if is_idle:
            most_s = MOST_HELD_S if any(front.wakes for front in self._fronts) else 0.0
            for front in self._fronts:
                front.runner.refuse_stuck(seconds(self.now_ps), most_s)
        return min(times)

    def _end_batches(self) -> None:
        """End the batches that are due, and take engines that wake up."""
        due, now_ps = self._due, self.now_ps
        while due and due[0][0] <= now_ps:
            at_ps, index = heapq.heappop(due)
            if self._due_ps[index] != at_ps:
                continue
            self._due_ps[index] = None
            engine = self.engines[index]
            self._begin.add(index)
            if engine.is_busy:
                engine.finish_batch()
                self._usage.changed(index)
                if self._stopped:
                    return

    def _begin_batches(self) -> None:
        for index in sorted(self._begin):
            engine = self.engines[index]
            engine.now_ps = self.now_ps
            self._set_due(index, engine.due_ps if engine.begin_batch() else engine.wake_ps())
            self._usage.changed(index)
        self._begin.clear()

    def _set_due(self, index: int, at_ps: int | None) -> None:
        self._due_ps[index] = at_ps
        if at_ps is not None:
            heapq.heappush(self._due, (at_ps, index))

    def _interrupt(self, index: int) -> None:
        """Let the engine see what was sent to it."""
        self._wake(index, self.engines[index].next_event_ps(self.now_ps))

    def _wake(self, index: int, at_ps: int) -> None:
        """Let the engine see a new event at `at_ps`: end its stride, or begin a batch then."""
        due_ps = self._due_ps[index]
        if self.engines[index].is_busy:
            self._shorten(index, at_ps)
        elif at_ps <= self.now_ps:
            self._begin.add(index)
        elif due_ps is None or at_ps < due_ps:
            self._set_due(index, at_ps)

    def _shorten(self, index: int, at_ps: int) -> None:
        """End the batch of a busy engine with its first step that ends at `at_ps` or later."""
        engine = self.engines[index]
        engine.interrupt(at_ps)
        if engine.due_ps != self._due_ps[index]:
            self._set_due(index, engine.due_ps)
