"""A router in front of some engines of a fleet, and the load reports that it gets from them.

In: turns that arrive and end. Out: turns that are delivered to the engines that the router chooses,
and calls of `on_sent` with the index of each such engine. The fleet sets the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from servers.basics.clock import PS_PER_S, seconds
from servers.policies.base import Costs
from servers.profiles import costs
from servers.routers.base import Replica, RoutedTurn, Runs
from servers.routers.runner import BuildRouter, RouterRunner
from servers.sim.engine import Engine
from servers.sim.fleet_usage import FleetUsage
from servers.sim.kv import BlockOwner, Path
from servers.sim.sequence import Sequence as Served
from servers.sim.sequence import Submission


class Front:
    def __init__(
        self,
        build_router: BuildRouter,
        engines: Sequence[Engine],
        usage: FleetUsage,
        *,
        first: int,
        tree: int,
        on_sent: Callable[[int], None],
    ) -> None:
        """`usage`: of the fleet. `first`: index of the first of these engines in the fleet.
        `tree`: the tree of contents of the router."""
        self.engines, self._usage = engines, usage
        self._block = engines[0].profile.block_tokens
        self.replicas = [
            Replica(index, engine.profile.kv_blocks * self._block, _costs(engine))
            for index, engine in enumerate(engines)
        ]
        self.runner = RouterRunner(build_router, self.replicas, self._deliver)
        # Without a type: compiled code reads attributes of a typed object where its class has them.
        router: Any = self.runner.router
        self._needs_runs: bool = router.needs_runs
        self._report_s: float | None = router.report_s
        self._period_ps = _ps(router.period_s)
        self._report_ps = _ps(self._report_s) if self._report_s else 0
        self._next_report_ps, self._next_period_ps = 0, self._period_ps
        self._wake_ps: int | None = None
        self._first, self._tree, self._on_sent = first, tree, on_sent
        self._now_ps, self._now_s = 0, 0.0
        self.turns: dict[Served, RoutedTurn] = {}
        """The turns that have arrived and not ended."""
        self._served: dict[int, Served] = {}
        """By id of the routed turn."""

    def set_clock(self, now_ps: int) -> None:
        self._now_ps, self._now_s = now_ps, seconds(now_ps)

    @property
    def wakes(self) -> bool:
        """Whether the router will be called although no turn arrives or ends."""
        return self._period_ps > 0 or self._wake_ps is not None

    def add_times(self, times: list[int]) -> None:
        """Add the next times at which it must be called."""
        if self._period_ps:
            times.append(self._next_period_ps)
        if self._report_ps:
            times.append(self._next_report_ps)
        wake_s = self.runner.router.wake_s(self._now_s)
        self._wake_ps = None if wake_s is None else max(_ps(wake_s), self._now_ps + 1)
        if self._wake_ps is not None:
            times.append(self._wake_ps)

    def call_if_due(self) -> None:
        """Report loads and call the router, if it is time."""
        now_ps = self._now_ps
        if self._report_ps and now_ps >= self._next_report_ps:
            self._usage.report(self.replicas, self._first, now_ps)
            self._next_report_ps += self._report_ps
        if self._period_ps and now_ps >= self._next_period_ps:
            self.runner.tick(self._now_s)
            self._next_period_ps += self._period_ps
        if self._wake_ps is not None and now_ps >= self._wake_ps:
            self.runner.resume(self._now_s)

    def arrive(self, served: Served) -> None:
        sent = served.submission
        runs = self._runs(sent)
        turn = self.runner.turn(
            sent.program_id, sent.job_id, sent.prompt_tokens, sent.is_last, runs, self._now_s
        )
        self.turns[served] = turn
        self._served[turn.id] = served
        if self._report_s is not None and not self._report_ps:
            self._usage.report(self.replicas, self._first, self._now_ps)
        self.runner.arrived(turn, self._now_s)

    def ended(self, served: Served) -> None:
        turn = self.turns.pop(served)
        del self._served[turn.id]
        turn.output_tokens = served.view.output_tokens
        turn.cached_tokens = sum(tokens for _, tokens in served.hits or ())
        if turn.is_last:
            self._tell_engines(turn.program_id, turn.replica)
        self.runner.finished(turn, self._now_s, bool(turn.is_last))

    def end_program(self, program_id: str) -> None:
        """End a program that submitted no turn with `is_last`."""
        self._tell_engines(program_id, -1)
        self.runner.end_program(program_id, self._now_s)

    def _runs(self, submission: Submission) -> Runs:
        if not self._needs_runs or submission.path_on is None:
            return ()
        return runs_of(submission.path_on(self._tree), self._block, submission.prompt_tokens)

    def _deliver(self, turn: RoutedTurn) -> None:
        served, index = self._served[turn.id], self._first + turn.replica
        submission = served.submission
        if submission.path_on is not None:
            submission.path = submission.path_on(index)
            served.owner = BlockOwner(submission.path)
        served.replica = index
        served.held_ps = self._now_ps - served.since_ps
        served.view.arrival_s = self._now_s
        self.engines[turn.replica].deliver(served, self._now_ps)
        self._on_sent(index)

    def _tell_engines(self, program_id: str, except_for: int) -> None:
        """Report the end of a program to the replicas that served turns of it. The one that serves
        its last turn knows it."""
        for index in self.runner.replicas_of(program_id):
            if index != except_for:
                self.engines[index].end_program_later(program_id)
                self._on_sent(self._first + index)


def _costs(engine: Engine) -> Costs:
    offload = len(engine.scheduler.reloads.tiers) > 0
    limits = engine.scheduler.limits
    return costs(
        engine.profile,
        step_tokens=limits.step_tokens,
        offload=offload,
        speculation=limits.speculation,
    )


def runs_of(path: Path, block_tokens: int, prompt_tokens: int) -> Runs:
    """Return the prompt of a turn as runs, given its path in a tree of contents."""
    runs: list[tuple[object, int]] = []
    for segment, leaves in path:
        end = leaves * block_tokens
        runs.append((segment, min(end, prompt_tokens)))
        if end >= prompt_tokens:
            break
    return tuple(runs)


def _ps(period_s: float | None) -> int:
    return 0 if period_s is None else max(1, math.ceil(period_s * PS_PER_S))
