"""A router in front of some engines of a fleet, and what it is told of them.

In: turns that arrive and end. Out: turns that are delivered to the engines that the router chooses,
and calls of `on_sent` with the index of each such engine. The fleet sets the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from servers.basics.clock import PS_PER_S, seconds
from servers.basics.errors import InvalidRouter
from servers.policies.base import Costs
from servers.profiles import costs
from servers.routers.base import Replica, RoutedTurn, Router, Runs
from servers.sim.engine import Engine
from servers.sim.fleet_usage import FleetUsage
from servers.sim.kv import BlockOwner, Path
from servers.sim.sequence import Sequence as Served
from servers.sim.sequence import Submission


class Front:
    def __init__(
        self,
        build_router: Callable[[Sequence[Replica]], Router],
        engines: Sequence[Engine],
        usage: FleetUsage,
        *,
        first: int,
        tree: int,
        on_sent: Callable[[int], None],
    ) -> None:
        """`usage`: that of the fleet. `first`: index of the first of these engines in the fleet.
        `tree`: the tree of contents of the router."""
        self.engines, self._usage = engines, usage
        self._block = engines[0].profile.block_tokens
        self.replicas = [
            Replica(index, engine.profile.kv_blocks * self._block, _costs(engine))
            for index, engine in enumerate(engines)
        ]
        self.router = build_router(self.replicas)
        # Without a type: compiled code reads attributes of a typed object where its class has them.
        attributes: Any = self.router
        self.name: str = attributes.name
        self._needs_runs: bool = attributes.needs_runs
        self._report_s: float | None = attributes.report_s
        self._period_ps = _ps(attributes.period_s)
        self._report_ps = _ps(self._report_s) if self._report_s else 0
        self._next_report_ps, self._next_period_ps = 0, self._period_ps
        self._wake_ps: int | None = None
        self._first, self._tree, self._on_sent = first, tree, on_sent
        self.turns: dict[Served, RoutedTurn] = {}
        """The turns that have arrived and not ended."""
        self._served: dict[int, Served] = {}
        """By id of the routed turn."""
        self._in_flight = 0
        """Turns that were sent to a replica and have not ended."""
        self._programs_seen: dict[str, tuple[int, set[int]]] = {}
        """By program that has not ended: number of turns, and replicas that served one."""
        self._arrived = 0

    @property
    def held(self) -> int:
        """Number of turns that the router holds back."""
        return len(self.turns) - self._in_flight

    @property
    def wakes(self) -> bool:
        """Whether the router will be called although no turn arrives or ends."""
        return self._period_ps > 0 or self._wake_ps is not None

    def add_times(self, times: list[int], now_ps: int) -> None:
        """Add the next times at which it must be called."""
        if self._period_ps:
            times.append(self._next_period_ps)
        if self._report_ps:
            times.append(self._next_report_ps)
        wake_s = self.router.wake_s(seconds(now_ps))
        self._wake_ps = None if wake_s is None else max(_ps(wake_s), now_ps + 1)
        if self._wake_ps is not None:
            times.append(self._wake_ps)

    def call_if_due(self, now_ps: int) -> None:
        """Report loads and call the router, if it is time."""
        if self._report_ps and now_ps >= self._next_report_ps:
            self._usage.report(self.replicas, self._first, now_ps)
            self._next_report_ps += self._report_ps
        if self._period_ps and now_ps >= self._next_period_ps:
            for turn, index in self.router.tick(seconds(now_ps)):
                self._send(turn, index, now_ps)
            self._next_period_ps += self._period_ps
        if self._wake_ps is not None and now_ps >= self._wake_ps:
            self.resume(now_ps)

    def arrive(self, served: Served, now_ps: int) -> None:
        submission = served.submission
        program_id = submission.program_id or f"turn {self._arrived}"
        number, replicas = self._programs_seen.get(program_id, (0, set[int]()))
        self._programs_seen[program_id] = number + 1, replicas
        turn = RoutedTurn(
            self._arrived,
            program_id,
            number,
            seconds(now_ps),
            submission.prompt_tokens,
            submission.is_last,
            self._runs(submission),
            submission.job_id,
        )
        self._arrived += 1
        self.turns[served] = turn
        self._served[turn.id] = served
        if self._report_s is not None and not self._report_ps:
            self._usage.report(self.replicas, self._first, now_ps)
        chosen = self.router.route(turn, seconds(now_ps))
        if chosen is not None:
            self._send(turn, chosen, now_ps)
        self.resume(now_ps)

    def ended(self, served: Served, now_ps: int) -> None:
        turn = self.turns.pop(served)
        del self._served[turn.id]
        self._in_flight -= 1
        self.replicas[turn.replica].turns -= 1
        turn.output_tokens = served.view.output_tokens
        turn.cached_tokens = sum(tokens for _, tokens in served.hits or ())
        self.router.finished(turn, seconds(served.finished_ps or 0))
        if turn.is_last:
            self._end_program(turn.program_id, turn.replica, now_ps)
        self.resume(now_ps)

    def end_program(self, program_id: str, now_ps: int) -> None:
        """End a program of which no turn was submitted with `is_last`."""
        self._end_program(program_id, -1, now_ps)
        self.resume(now_ps)

    def resume(self, now_ps: int) -> None:
        for turn, index in self.router.resumed(seconds(now_ps)):
            self._send(turn, index, now_ps)

    def _runs(self, submission: Submission) -> Runs:
        if not self._needs_runs or submission.path_on is None:
            return ()
        return runs_of(submission.path_on(self._tree), self._block, submission.prompt_tokens)

    def _send(self, turn: RoutedTurn, index: int, now_ps: int) -> None:
        served = self._served[turn.id]
        if not 0 <= index < len(self.engines) or turn.replica >= 0:
            again = " again" if turn.replica >= 0 else ""
            raise InvalidRouter(
                f"the router {self.name} sends a turn of {turn.program_id} to replica "
                f"{index}{again}; there are {len(self.engines)}, from 0"
            )
        submission = served.submission
        if submission.path_on is not None:
            submission.path = submission.path_on(self._first + index)
            served.owner = BlockOwner(submission.path)
        turn.replica = index
        served.replica = self._first + index
        served.held_ps = now_ps - served.since_ps
        served.view.arrival_s = seconds(now_ps)
        self.replicas[index].turns += 1
        self._programs_seen[turn.program_id][1].add(index)
        self._in_flight += 1
        self.engines[index].deliver(served, now_ps)
        self._on_sent(self._first + index)

    def _end_program(self, program_id: str, except_for: int, now_ps: int) -> None:
        """Report the end of a program to the router, and to replicas that served earlier turns of
        it. The one that serves its last turn knows it."""
        seen = self._programs_seen.pop(program_id, None)
        if seen is None:
            return
        self.router.program_ended(program_id, seconds(now_ps))
        for index in sorted(seen[1]):
            if index != except_for:
                self.engines[index].end_program_later(program_id)
                self._on_sent(self._first + index)


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
