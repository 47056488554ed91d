"""Several replicas under one clock, behind a router.

In: turns with their submission times, a router, and an engine per replica. Out: calls of `on_end`.
An engine computes many steps at once if nothing is due that changes its batch. A turn that is sent
to it in the meantime ends its batch with the step that is being computed then (`Engine.interrupt`),
so that all decisions are those of single steps.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from servers.clock import PS_PER_S, seconds
from servers.errors import InvalidRouter
from servers.policies.base import Costs
from servers.profiles import Profile, costs
from servers.routers.base import Replica, RoutedTurn, Router, Runs
from servers.sim.engine import Engine, OnEnd
from servers.sim.fleet_usage import FleetUsage
from servers.sim.kv import BlockOwner, Path
from servers.sim.sequence import Sequence as Served
from servers.sim.sequence import Submission, Usage, refuse_unfit

MOST_HELD_S = 86_400.0
"""A router that holds turns back while no turn is served must send one within this time."""
BuildEngine = Callable[..., Engine]
"""For example `functools.partial(Engine, policy, profile, limits)`; called with `on_end`."""


class Fleet:
    """Submit turns, then call `run`. It has the methods of an `Engine` that a replay uses."""

    def __init__(
        self,
        build_router: Callable[[Sequence[Replica]], Router],
        engines: Sequence[BuildEngine],
        *,
        on_end: OnEnd,
    ) -> None:
        self.engines = [build(on_end=self._ended) for build in engines]
        self.profile: Profile = self.engines[0].profile
        block = self.profile.block_tokens
        self.replicas = [
            Replica(index, engine.profile.kv_blocks * block, _costs(engine))
            for index, engine in enumerate(self.engines)
        ]
        self.router = build_router(self.replicas)
        # Without a type: compiled code reads attributes of a typed object where its class has them.
        attributes: Any = self.router
        self._name: str = attributes.name
        self._needs_runs: bool = attributes.needs_runs
        self._report_s: float | None = attributes.report_s
        self._period_ps = _ps(attributes.period_s)
        self._report_ps = _ps(self._report_s) if self._report_s else 0
        self.now_ps = 0
        self._usage = FleetUsage(self.engines)
        self._on_end = on_end
        self._block = block
        self._events: list[tuple[int, bool, int, Served]] = []
        """Arrivals by time; at equal times, first turns of `_programs` come first."""
        self._due: list[tuple[int, int]] = []
        """When engines end their batch or wake up, with those that have changed since."""
        self._due_ps: list[int | None] = [None] * len(self.engines)
        self._begin: set[int] = set()
        """Engines that begin a batch now."""
        self._turns: dict[Served, RoutedTurn] = {}
        self._served: dict[int, Served] = {}
        """By id of the routed turn."""
        self._in_flight = 0
        """Turns that were sent to a replica and have not ended."""
        self._programs_seen: dict[str, tuple[int, set[int]]] = {}
        """By program that has not ended: number of turns, and replicas that served one."""
        self._programs: Iterator[object] = iter(())
        self._submits_first_turn = False
        self._serial = self._arrived = 0
        self._next_report_ps, self._next_period_ps = 0, self._period_ps
        self._wake_ps: int | None = None
        self._idle_since_ps: int | None = None
        """Since when no turn is served or about to arrive."""
        self._stopped = False

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
        self._serial += 1
        heapq.heappush(self._events, (at_ps, not self._submits_first_turn, self._serial, served))
        return served

    def end_program(self, program_id: str) -> None:
        """End a program of which no turn was submitted with `is_last`."""
        self._end_program(program_id, except_for=-1)
        self._resume()

    def usage(self) -> Usage:
        """Return the sums over all replicas; turns that are held back wait."""
        held = len(self._turns) - self._in_flight
        return self._usage.total(seconds(self.now_ps), held)

    def stop(self) -> None:
        self._stopped = True

    def run(self, programs: Iterable[object] = ()) -> None:
        """As `Engine.run`. Raises InvalidRouter."""
        self._programs = iter(programs)
        self._begin_next()
        while not self._stopped and (now_ps := self._next_ps()) is not None:
            self.now_ps = now_ps
            self._end_batches()
            self._report_and_resume()
            while self._events and self._events[0][0] <= now_ps:
                _, later, _, served = heapq.heappop(self._events)
                self._arrive(served)
                if not later:
                    self._begin_next()
            self._begin_batches()

    # The clock ----------------------------------------------------------------------------------

    def _next_ps(self) -> int | None:
        """Return the time of the next change; None at the end."""
        due = self._due
        while due and self._due_ps[due[0][1]] != due[0][0]:
            heapq.heappop(due)
        times = [queue[0][0] for queue in (due, self._events) if queue]
        if not times and not self._turns:
            return None
        if self._period_ps:
            times.append(self._next_period_ps)
        if self._report_ps:
            times.append(self._next_report_ps)
        wake_s = self.router.wake_s(seconds(self.now_ps))
        self._wake_ps = None if wake_s is None else max(_ps(wake_s), self.now_ps + 1)
        if self._wake_ps is not None:
            times.append(self._wake_ps)
        if due or self._events:
            self._idle_since_ps = None
        else:
            self._refuse_stuck()
        return min(times)

    def _refuse_stuck(self) -> None:
        """Raise InvalidRouter if turns are held back, and none was served for a day."""
        if self._idle_since_ps is None:
            self._idle_since_ps = self.now_ps
        idle_ps = self.now_ps - self._idle_since_ps
        wakes = self._period_ps or self._wake_ps is not None
        if not wakes or idle_ps > MOST_HELD_S * PS_PER_S:
            held = len(self._turns)
            raise InvalidRouter(
                f"the router {self._name} holds back {held} turns for ever, although the "
                "replicas are idle; its `resumed` or `tick` must return them"
            )

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
        """Let an engine take notice of something now, at the end of its current step."""
        engine = self.engines[index]
        if not engine.is_busy:
            self._begin.add(index)
            return
        engine.interrupt(self.now_ps)
        if engine.due_ps != self._due_ps[index]:
            self._set_due(index, engine.due_ps)

    # Turns --------------------------------------------------------------------------------------

    def _begin_next(self) -> None:
        self._submits_first_turn = True
        next(self._programs, None)
        self._submits_first_turn = False

    def _arrive(self, served: Served) -> None:
        submission = served.submission
        program_id = submission.program_id or f"turn {self._arrived}"
        number, replicas = self._programs_seen.get(program_id, (0, set[int]()))
        self._programs_seen[program_id] = number + 1, replicas
        turn = RoutedTurn(
            self._arrived,
            program_id,
            number,
            seconds(self.now_ps),
            submission.prompt_tokens,
            submission.is_last,
            self._runs(submission),
            submission.job_id,
        )
        self._arrived += 1
        self._turns[served] = turn
        self._served[turn.id] = served
        if self._report_s is not None and not self._report_ps:
            self._usage.report(self.replicas, self.now_ps)
        chosen = self.router.route(turn, seconds(self.now_ps))
        if chosen is not None:
            self._send(turn, chosen)
        self._resume()

    def _runs(self, submission: Submission) -> Runs:
        if not self._needs_runs or submission.path_on is None:
            return ()
        path = submission.path_on(len(self.engines))
        return runs_of(path, self._block, submission.prompt_tokens)

    def _send(self, turn: RoutedTurn, index: int) -> None:
        served = self._served[turn.id]
        if not 0 <= index < len(self.engines) or turn.replica >= 0:
            again = " again" if turn.replica >= 0 else ""
            raise InvalidRouter(
                f"the router {self._name} sends a turn of {turn.program_id} to replica "
                f"{index}{again}; there are {len(self.engines)}, from 0"
            )
        submission = served.submission
        if submission.path_on is not None:
            submission.path = submission.path_on(index)
            served.owner = BlockOwner(submission.path)
        turn.replica = served.replica = index
        served.held_ps = self.now_ps - served.since_ps
        served.view.arrival_s = seconds(self.now_ps)
        self.replicas[index].turns += 1
        self._programs_seen[turn.program_id][1].add(index)
        self._in_flight += 1
        self.engines[index].deliver(served, self.now_ps)
        self._interrupt(index)

    def _ended(self, served: Served) -> None:
        turn = self._turns.pop(served)
        del self._served[turn.id]
        self._in_flight -= 1
        self.replicas[turn.replica].turns -= 1
        self._usage.changed(turn.replica)
        turn.output_tokens = served.view.output_tokens
        turn.cached_tokens = sum(tokens for _, tokens in served.hits or ())
        now_s = seconds(served.finished_ps or 0)
        self.router.finished(turn, now_s)
        if turn.is_last:
            self._end_program(turn.program_id, except_for=turn.replica)
        self._resume()
        self._on_end(served)

    def _end_program(self, program_id: str, except_for: int) -> None:
        """Report the end of a program to the router, and to replicas that served earlier turns of
        it. The one that serves its last turn knows it."""
        seen = self._programs_seen.pop(program_id, None)
        if seen is None:
            return
        self.router.program_ended(program_id, seconds(self.now_ps))
        for index in sorted(seen[1]):
            if index != except_for:
                self.engines[index].end_program_later(program_id)
                self._interrupt(index)

    # The router ---------------------------------------------------------------------------------

    def _report_and_resume(self) -> None:
        """Report loads and call the router, if it is time."""
        if self._report_ps and self.now_ps >= self._next_report_ps:
            self._usage.report(self.replicas, self.now_ps)
            self._next_report_ps += self._report_ps
        if self._period_ps and self.now_ps >= self._next_period_ps:
            for turn, index in self.router.tick(seconds(self.now_ps)):
                self._send(turn, index)
            self._next_period_ps += self._period_ps
        if self._wake_ps is not None and self.now_ps >= self._wake_ps:
            self._resume()

    def _resume(self) -> None:
        for turn, index in self.router.resumed(seconds(self.now_ps)):
            self._send(turn, index)


def _costs(engine: Engine) -> Costs:
    offload = len(engine.scheduler.reloads.tiers) > 0
    step_tokens = engine.scheduler.limits.step_tokens
    return costs(engine.profile, step_tokens=step_tokens, offload=offload)


def runs_of(path: Path, block_tokens: int, prompt_tokens: int) -> Runs:
    """Return the prompt of a turn, of which the path in a tree of contents is given, as runs."""
    runs: list[tuple[object, int]] = []
    for segment, leaves in path:
        end = leaves * block_tokens
        runs.append((segment, min(end, prompt_tokens)))
        if end >= prompt_tokens:
            break
    return tuple(runs)


def _ps(period_s: float | None) -> int:
    return 0 if period_s is None else max(1, math.ceil(period_s * PS_PER_S))
