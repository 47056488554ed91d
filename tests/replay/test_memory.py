"""Memory of a replay grows with the programs that are in flight, not with all there are."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from harness.load.arrivals import choose_programs
from harness.replay.live import Replica, replay_live
from harness.replay.virtual import replay
from servers.policies.base import Costs
from servers.sim import Engine, Limits
from servers.variants import make_policy, variants
from tests.bench.trivial_server import beside
from tests.sim.worlds import profile
from traces import Program, Turn

FEW, MANY = 200, 700
BYTES_PER_PROGRAM = 500
"""Its place in the order of arrivals, and what a policy learned from its tool times; one under way
takes some 4,000."""


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


def per_further_program(replayed: Callable[[Sequence[Program], Sequence[float]], object]) -> float:
    """Ten programs a second, of which each is over before the next one starts."""
    replayed(programs(FEW), [0.0] * FEW)  # so that what is made once is there
    peaks = [
        peak_bytes(partial(replayed, programs(jobs), [0.1 * n for n in range(jobs)]))
        for jobs in (FEW, MANY)
    ]
    return (peaks[1] - peaks[0]) / (MANY - FEW)


@pytest.mark.parametrize("name", ["fcfs", "continuum", "infercept", "autellix", "clairvoyant"])
def test_in_virtual_time(name: str) -> None:
    variant = variants(name)[0]

    def replayed(load: Sequence[Program], starts_s: Sequence[float]) -> None:
        policy = make_policy(variant, Costs(prefill_s=lambda tokens: tokens * 1e-6))
        engine = partial(Engine, policy, profile(kv_blocks=200), Limits())
        replay(load, starts_s, None, engine, lambda _: None, bound=variant.bound)

    assert per_further_program(replayed) < BYTES_PER_PROGRAM


@pytest.fixture
def url() -> Iterator[str]:
    with beside() as url:
        yield url


def test_against_a_server(url: str) -> None:
    """All starts but a few lie far ahead: what is not due yet takes next to nothing."""

    async def a_moment_of(load: Sequence[Program], starts_s: Sequence[float]) -> None:
        began = asyncio.Event()
        replaying = asyncio.create_task(
            replay_live(
                load,
                starts_s,
                None,
                replicas=[Replica(url)],
                model="m",
                vocabulary=range(1000, 100_000),
                seed=0,
                on_turn=lambda record: began.set() if record.turn == 3 else None,
            )
        )
        await began.wait()
        replaying.cancel()
        await asyncio.wait([replaying])

    def replayed(load: Sequence[Program], starts_s: Sequence[float]) -> None:
        asyncio.run(a_moment_of(load, [1000 * s for s in starts_s]))

    assert per_further_program(replayed) < BYTES_PER_PROGRAM
