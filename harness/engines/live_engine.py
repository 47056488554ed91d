"""The base class of live engines, which replay a cell against real servers in real time.

A cell records stalls of this machine, and fails if a server is lost.
"""

from __future__ import annotations

import asyncio
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from msgspec import UNSET

from harness.cells.job import Job
from harness.engines.base import EngineKind
from harness.load.settings import Prompts, Server
from harness.replay.http import api_key
from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from harness.replay.liveness import ServerMonitor, ServerTimeouts
from servers.basics.errors import CellFailed, InvalidRouter
from servers.processes.supervised import Failing, first_failure
from servers.records.done import DoneRecord
from servers.records.settings import OffloadRecord
from servers.records.turns import TurnRecord
from servers.routers.sticky import Sticky
from servers.routing import NamedRouter
from servers.variants import Variant

LAST_RECORDS_S = 2.0
"""Time for the turns of a dead server to fail with their own errors."""


def end_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, so that a worker ends the processes that it started."""

    def end(_number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def replay_on(
    service: Service, job: Job, server: Server, processes: Sequence[Failing]
) -> DoneRecord:
    """Replay the programs of the job, or run its agents.

    Raises CellFailed if one of the `processes` exits, a server is lost or no program finishes,
    after all ended and active turns have been recorded. Resuming runs such a cell again.
    """
    timeouts = ServerTimeouts(server.lost_after_s, server.stuck_after_s)
    failure = (lambda: first_failure(processes)) if processes else None
    monitor = ServerMonitor(service.servers, timeouts, api_key(), failure)
    first_error: str | None = None
    answered = False
    counted = 0
    turns = [0] * _servers(service.servers)

    def turn_ended(record: TurnRecord) -> None:
        nonlocal first_error, answered, counted
        counted += record.counted is True
        if record.replica is not UNSET:
            turns[record.replica] += 1
        if (index := _sent_to(service.servers, record)) is not None:
            liveness = monitor.liveness[index]
            if record.error is None:
                liveness.byte_received()
                answered = True
            else:
                liveness.turn_failed()
                first_error = first_error or record.error
        job.on_turn(record)

    async def replay() -> DoneRecord:
        if job.agents is not None:
            from harness.live_agents.run import run_agents

            agents = replace(job, on_turn=turn_ended)
            return await run_agents(service, agents, lambda: monitor.lost_reason)
        job.on_stage("replaying")
        return await replay_live(
            job.programs,
            job.starts_s,
            job.in_flight,
            service,
            on_turn=turn_ended,
            on_event=job.on_event,
            api_key=api_key(),
            liveness=monitor.liveness,
            lost_reason=lambda: monitor.lost_reason,
            router=job.variant.router if isinstance(job.variant.router, NamedRouter) else Sticky,
            background=job.background_arrivals(),
            scenario_jobs=job.scenario_jobs,
        )

    try:
        done = asyncio.run(_with_stalls(_monitored(replay, monitor)))
    except CellFailed as failed:
        if job.scenario_jobs is None or first_error is None:
            raise
        raise CellFailed(f"{failed}; the first failed turn: {first_error}") from None
    cuts_programs = job.scenario_jobs is not None and answered  # by the window of a scenario
    if not done.finished_programs and first_error is not None and not cuts_programs:
        raise CellFailed(f"no program finished; the first failed turn: {first_error}")
    done.counted_turns = counted or None
    if any(turns):
        done.turns_per_replica = turns
    return done


def _servers(servers: Sequence[LiveServer]) -> int:
    first = servers[0]
    if first.dynamo is not None:
        return len(first.dynamo.workers)
    return len(first.behind) or len(servers)


def _sent_to(servers: Sequence[LiveServer], record: TurnRecord) -> int | None:
    if servers[0].behind or servers[0].dynamo is not None:
        return 0
    return None if record.replica is UNSET else record.replica


async def _with_stalls(replay: Coroutine[Any, Any, DoneRecord]) -> DoneRecord:
    """Return what the replay returns, with the stalls of this machine on the cell's clock."""
    stalls: list[tuple[float, float]] = []
    heartbeat = asyncio.create_task(record_stalls(stalls))
    try:
        done = await replay
    finally:
        heartbeat.cancel()
    origin_s = done.started_monotonic_s
    done.client_stalls = [(a - origin_s, b - origin_s) for a, b in stalls]
    return done


async def _monitored(replay: Any, monitor: ServerMonitor) -> DoneRecord:
    replay_task: asyncio.Task[DoneRecord] = asyncio.create_task(replay())
    monitor_task = asyncio.create_task(monitor.wait_until_lost())
    try:
        await asyncio.wait({replay_task, monitor_task}, return_when=asyncio.FIRST_COMPLETED)
        if monitor_task.done():
            monitor_task.result()
            timeout_s = LAST_RECORDS_S if monitor.connections_closed else 0
            await asyncio.wait({replay_task}, timeout=timeout_s)
    finally:
        replay_task.cancel()
        monitor_task.cancel()
        await asyncio.wait({replay_task, monitor_task})
    error = None if replay_task.cancelled() else replay_task.exception()
    if isinstance(error, InvalidRouter):
        raise CellFailed(str(error)) from error
    if error is not None and not isinstance(error, CellFailed):
        raise error
    if monitor.lost_reason is None:
        none_finished = error is not None or not replay_task.result().finished_programs
        await monitor.check_after_replay(all_failed=none_finished)
    if monitor.lost_reason is not None:
        raise CellFailed(monitor.lost_reason)
    return replay_task.result()


BEAT_S = 0.05
STALL_S = 0.2
"""The least time without CPU that counts as a stall. Shorter ones are ordinary client lateness."""


async def record_stalls(stalls: list[tuple[float, float]]) -> None:
    """Append the beginning and the end of each stall until this is cancelled. The beginning is at
    most `BEAT_S` early. A client that is too slow is no stall, since it uses its CPU then."""
    now_s = asyncio.get_running_loop().time
    while True:
        began_s, used_s = now_s(), time.thread_time()
        await asyncio.sleep(BEAT_S)
        ended_s = now_s()
        if ended_s - began_s - BEAT_S - (time.thread_time() - used_s) >= STALL_S:
            stalls.append((began_s, ended_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEngine(ABC):
    kind: EngineKind
    server: Server
    """The options of live engines."""

    def tier(self, variant: Variant) -> OffloadRecord | None:
        return None

    def service(
        self,
        servers: Sequence[LiveServer],
        model: str,
        vocabulary: tuple[int, int],
        seed: int,
        **options: Any,
    ) -> Service:
        """`options`: further fields of the `Service`."""
        text = self.server.prompts is Prompts.TEXT
        timeout_s = self.server.turn_timeout_s
        return Service(servers, model, range(*vocabulary), seed, text, timeout_s, **options)

    @abstractmethod
    def serve(self, job: Job) -> DoneRecord:
        """Start the servers of the cell, call `self.replay` once, stop them, and return its record
        with what the servers report."""

    def run(self, job: Job) -> DoneRecord:
        end_on_sigterm()  # so that the servers are stopped
        return self.serve(job)

    def replay(self, job: Job, service: Service, processes: Sequence[Failing] = ()) -> DoneRecord:
        """Replay the job's programs on the servers, or run its agents. Raises CellFailed, also when
        one of the `processes` exits."""
        return replay_on(service, job, self.server, processes)
