"""One cell on servers that are up: replayed, watched, and given up when a server is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from msgspec import UNSET

from harness.cells.job import Job
from harness.replay.http import api_key
from harness.replay.live import Replica, replay_live
from harness.replay.liveness import ServerTimeouts, Watch
from servers.errors import CellFailed
from servers.records import EventRecord, TurnRecord

LAST_LINES_S = 2.0
"""For turns of a server that died to fail by themselves, each with its own reason."""


def end_on_sigterm() -> None:
    """For a worker that has started something: out through every `finally` and `with`, instead of
    dying on the spot."""

    def end(_number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def replay_on(
    replicas: Sequence[Replica],
    job: Job,
    *,
    model: str,
    vocabulary: range,
    seed: int,
    turn_timeout_s: float,
    patience: ServerTimeouts,
    text: bool,
    tagged: bool,
    on_turn: Callable[[TurnRecord], None],
    on_event: Callable[[EventRecord], None],
    failure: Callable[[], Exception | None] | None = None,
    cache_salt: str | None = None,
) -> dict[str, Any]:
    """A replay, or the job's agents. `tagged`: the servers take `vllm_xargs` from agents, which not
    all do. `failure` says why a server no longer runs. CellFailed where a server is lost or no
    program finished, with the lines of all turns that ended or were under way: such a cell says
    nothing, and is run again."""
    watch = Watch(replicas, patience, api_key(), failure)
    first_error: str | None = None

    def turn_ended(record: TurnRecord) -> None:
        nonlocal first_error
        if record.replica is not UNSET:
            pulse = watch.pulses[record.replica]
            if record.error is None:
                pulse.byte_received()
            else:
                pulse.doubted, first_error = True, first_error or record.error
        on_turn(record)

    async def replay() -> dict[str, Any]:
        if job.agents is not None:
            from harness.live_agents.run import run_agents

            return await run_agents(
                replicas,
                job,
                model=model,
                vocabulary=vocabulary,
                seed=seed,
                tagged=tagged,
                api_key=api_key(),
                on_turn=turn_ended,
                on_event=on_event,
                given_up=lambda: watch.lost,
            )
        return await replay_live(
            job.programs,
            job.starts_s,
            job.in_flight,
            replicas=replicas,
            model=model,
            vocabulary=vocabulary,
            seed=seed,
            on_turn=turn_ended,
            on_event=on_event,
            turn_timeout_s=turn_timeout_s,
            text=text,
            api_key=api_key(),
            pulses=watch.pulses,
            given_up=lambda: watch.lost or "cancelled",
            cache_salt=cache_salt,
        )

    done = asyncio.run(_watched(replay, watch))
    if not done["finished_programs"] and first_error is not None:
        raise CellFailed(f"no program finished; the first failed turn: {first_error}")
    return done


async def _watched(replay: Any, watch: Watch) -> dict[str, Any]:
    replaying: asyncio.Task[dict[str, Any]] = asyncio.create_task(replay())
    losing = asyncio.create_task(watch.until_lost())
    try:
        await asyncio.wait({replaying, losing}, return_when=asyncio.FIRST_COMPLETED)
        if losing.done():
            losing.result()
            await asyncio.wait({replaying}, timeout=LAST_LINES_S if watch.turns_end else 0)
    finally:
        replaying.cancel()
        losing.cancel()
        await asyncio.wait({replaying, losing})
    broken = None if replaying.cancelled() else replaying.exception()
    if broken is not None and not isinstance(broken, CellFailed):
        raise broken
    if watch.lost is None:
        nothing = broken is not None or not replaying.result()["finished_programs"]
        await watch.last_look(all_failed=nothing)
    if watch.lost is not None:
        raise CellFailed(watch.lost)
    return replaying.result()
