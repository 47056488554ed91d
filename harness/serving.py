"""One cell on servers that are up: replayed, watched, and given up when a server dies."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from harness.client import api_key
from harness.course import Line
from harness.engine import CellFailed, Job
from harness.live import Replica, replay_live

LOOK_EVERY_S = 0.5
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
    text: bool,
    tagged: bool,
    on_turn: Callable[[Line], None],
    on_event: Callable[[Line], None],
    failure: Callable[[], Exception | None] = lambda: None,
) -> Line:
    """A replay, or the job's agents. `tagged`: the servers take `vllm_xargs` from agents, which not
    all do. `failure` says why a server no longer runs; then CellFailed, with the lines of all turns
    that ended or were under way."""

    async def replay() -> Line:
        if job.agents is not None:
            from harness.agent_run import run_agents

            return await run_agents(
                replicas,
                job,
                model=model,
                vocabulary=vocabulary,
                seed=seed,
                tagged=tagged,
                api_key=api_key(),
                on_turn=on_turn,
                on_event=on_event,
            )
        return await replay_live(
            job.programs,
            job.starts_s,
            job.in_flight,
            replicas=replicas,
            model=model,
            vocabulary=vocabulary,
            seed=seed,
            on_turn=on_turn,
            on_event=on_event,
            turn_timeout_s=turn_timeout_s,
            text=text,
            api_key=api_key(),
        )

    return asyncio.run(_watched(replay, failure))


async def _watched(replay: Any, failure: Callable[[], Exception | None]) -> Line:
    replaying: asyncio.Task[Line] = asyncio.create_task(replay())
    try:
        while not (await asyncio.wait({replaying}, timeout=LOOK_EVERY_S))[0]:
            if failure() is not None:
                await asyncio.wait({replaying}, timeout=LAST_LINES_S)
                break
    finally:
        if not replaying.done():
            replaying.cancel()
            await asyncio.wait({replaying})
    if (failed := failure()) is not None:
        raise CellFailed(str(failed))
    return replaying.result()
