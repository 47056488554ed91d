"""The memory of a replay depends on the programs in flight, not on the number of programs."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from harness.load.arrivals import choose_programs
from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from harness.replay.virtual import replay
from servers.policies.base import Costs
from servers.sim import Engine, Limits
from servers.variants import make_policy, variants
from tests.bench.trivial_server import trivial_server
from tests.sim.worlds import profile
from traces import Program, Turn

FEW, MANY = 200, 700
BYTES_PER_PROGRAM = 500
"""Memory for a program's arrival and for what a policy learned from its tool times. A running
program takes about 4,000 bytes."""


def programs(jobs: int) -> Sequence[Program]:
    turns = tuple(Turn(20 + 16 * at, 4, 16 * at, ("ls",), None, 0.01) for at in range(4))
    return choose_programs([Program(f"p{n}", turns) for n in range(5)], jobs)


def peak_bytes(run: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def bytes_per_program(replayed: Callable[[Sequence[Program], Sequence[float]], object]) -> float:
    """Replay ten programs per second, each of which ends before the next one starts."""
    replayed(programs(FEW), [0.0] * FEW)  # so that one-time allocations do not count
    peaks = [
        peak_bytes(partial(replayed, programs(jobs), [0.1 * n for n in range(jobs)]))
        for jobs in (FEW, MANY)
    ]
    return (peaks[1] - peaks[0]) / (MANY - FEW)


@pytest.mark.parametrize("name", ["fcfs", "continuum", "infercept", "autellix", "clairvoyant"])
def test_memory_in_virtual_time_depends_on_the_programs_in_flight(name: str) -> None:
    variant = variants(name)[0]

    def replayed(load: Sequence[Program], starts_s: Sequence[float]) -> None:
        policy = make_policy(variant, Costs(prefill_s=lambda tokens: tokens * 1e-6))
        engine = partial(Engine, policy, profile(kv_blocks=200), Limits())
        replay(load, starts_s, None, engine, lambda _: None, oracle=bool(variant.reference))

    assert bytes_per_program(replayed) < BYTES_PER_PROGRAM


@pytest.fixture
def url() -> Iterator[str]:
    with trivial_server() as url:
        yield url


def test_memory_against_a_server_depends_on_the_programs_in_flight(url: str) -> None:
    """Almost all starts are far in the future: programs that are not due take little memory."""

    async def replay_first_program(load: Sequence[Program], starts_s: Sequence[float]) -> None:
        first_finished = asyncio.Event()
        replaying = asyncio.create_task(
            replay_live(
                load,
                starts_s,
                None,
                Service([LiveServer(url)], "m", range(1000, 100_000), seed=0),
                on_turn=lambda record: first_finished.set() if record.turn == 3 else None,
            )
        )
        await first_finished.wait()
        replaying.cancel()
        await asyncio.wait([replaying])

    def replayed(load: Sequence[Program], starts_s: Sequence[float]) -> None:
        asyncio.run(replay_first_program(load, [1000 * s for s in starts_s]))

    assert bytes_per_program(replayed) < BYTES_PER_PROGRAM
