"""Waits in virtual time are those of queueing theory, job by job and on average.

A step takes 10 ms whatever its batch, and the first step of a turn computes its prompt and its
first token, so a turn of n tokens has a service time of exactly n · 10 ms.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import partial
from math import factorial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from harness.load.arrivals import drawn_starts, parse_arrivals, rng_for
from harness.replay.virtual import replay
from servers.policies.base import Costs
from servers.policies.fcfs import Fcfs
from servers.routers.round_robin import RoundRobin
from servers.sim import Engine, Limits
from servers.sim.fleet import Fleet
from tests.lines import into
from tests.sim.worlds import profile
from traces import Program, Turn

Floats = npt.NDArray[np.float64]

STEP_S = 0.01
MEAN_TOKENS = 50
SERVICE_S = MEAN_TOKENS * STEP_S
MACHINE = profile(kv_blocks=100_000, token_ps=0, context_ps=0, pair_ps=0)
POISSON = parse_arrivals("poisson")
JOBS = 1000
MANY = 400_000
ROUNDING_S = 1e-9


def engine(at_once: int) -> partial[Engine]:
    return partial(Engine, Fcfs(Costs(prefill_s=float)), MACHINE, Limits(max_num_seqs=at_once))


def run(tokens: npt.NDArray[np.int64], starts_s: Sequence[float], server: Any) -> Floats:
    """Return the time of each job from its arrival to its end, minus its service time."""
    turns: list[dict[str, Any]] = []
    programs = [Program(f"p{k}", (Turn(16, int(n)),)) for k, n in enumerate(tokens)]
    replay(programs, starts_s, None, server, into(turns))
    end_s = {turn["program_id"]: turn["finished_at_s"] - turn["scheduled_at_s"] for turn in turns}
    return np.array([end_s[f"p{k}"] for k in range(len(tokens))]) - tokens * STEP_S


def starts(rate: float, jobs: int, seed: int = 1) -> Floats:
    return np.array(drawn_starts(POISSON, rate, jobs, rng_for(seed, "arrivals")))


def tokens_of(kind: str, jobs: int) -> npt.NDArray[np.int64]:
    rng = np.random.default_rng(1)
    if kind == "D":
        return np.full(jobs, MEAN_TOKENS)
    if kind == "M":
        return rng.geometric(1 / MEAN_TOKENS, jobs)
    # One job in ten is 13 times as long as the others, on average.
    long = rng.random(jobs) < 0.1
    return np.where(long, rng.geometric(1 / 295, jobs), rng.geometric(1 / 23, jobs))


def lindley(starts_s: Floats, services_s: Floats) -> Floats:
    """Return the waits of one server: each is the one before, plus its service, minus the gap."""
    steps = np.concatenate([[0.0], np.cumsum(services_s[:-1] - np.diff(starts_s))])
    waits: Floats = steps - np.minimum.accumulate(steps)
    return waits


def several(starts_s: Floats, services_s: Floats, servers: int) -> Floats:
    """Return the waits for the first of several servers that is free (Kiefer and Wolfowitz)."""
    free_s = [0.0] * servers
    waits = []
    for start_s, service_s in zip(starts_s.tolist(), services_s.tolist(), strict=True):
        begin_s = max(start_s, heapq.heappop(free_s))
        heapq.heappush(free_s, begin_s + service_s)
        waits.append(begin_s - start_s)
    return np.array(waits)


@pytest.mark.parametrize("kind", ["D", "M", "G"])
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_turn_at_a_time_waits_as_in_lindleys_recursion(kind: str, load: float) -> None:
    tokens = tokens_of(kind, JOBS)
    starts_s = starts(load / SERVICE_S, JOBS)
    waits_s = run(tokens, starts_s.tolist(), engine(1))
    assert np.abs(waits_s - lindley(starts_s, tokens * STEP_S)).max() < ROUNDING_S


@pytest.mark.parametrize("kind", ["D", "M", "G"])
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_mean_wait_is_that_of_pollaczek_and_khinchin(kind: str, load: float) -> None:
    """W = λ E[S²] ÷ 2 (1 − ρ). For M/D/1 that is 0.5 ρ ÷ (1 − ρ) service times."""
    services_s = tokens_of(kind, MANY) * STEP_S
    rate = load / float(services_s.mean())
    waits_s = lindley(starts(rate, MANY), services_s)
    expected_s = rate * float((services_s**2).mean()) / 2 / (1 - load)
    assert waits_s.mean() == pytest.approx(expected_s, rel=0.05)


def test_eight_turns_at_a_time_wait_as_for_eight_servers_and_half_a_step() -> None:
    """A turn that arrives during a step begins after it, so it waits up to 10 ms longer, and half
    of that on average."""
    tokens, starts_s = tokens_of("M", 2 * JOBS), starts(6 / SERVICE_S, 2 * JOBS)
    waits_s = run(tokens, starts_s.tolist(), engine(8))
    more_s = waits_s - several(starts_s, tokens * STEP_S, 8)
    assert more_s.mean() == pytest.approx(STEP_S / 2, abs=STEP_S / 4)


def test_the_mean_wait_of_eight_servers_is_erlangs() -> None:
    """C = a⁸ ÷ 8! ÷ (1 − ρ) ÷ (Σ aᵏ ÷ k! + …) and W = C S ÷ (8 − a), with a = 6."""
    tokens = np.random.default_rng(2).exponential(SERVICE_S, MANY // 4)
    waits_s = several(starts(6 / SERVICE_S, MANY // 4), tokens, 8)
    last = 6**8 / factorial(8) / (1 - 6 / 8)
    waiting = last / (sum(6**k / factorial(k) for k in range(8)) + last)
    assert waits_s.mean() == pytest.approx(waiting * SERVICE_S / (8 - 6), rel=0.05)


def test_two_replicas_in_turn_wait_as_two_queues_of_every_other_job() -> None:
    tokens, starts_s = tokens_of("M", JOBS), starts(2 * 0.8 / SERVICE_S, JOBS)
    fleet = partial(Fleet, RoundRobin, [engine(1), engine(1)])
    waits_s = run(tokens, starts_s.tolist(), fleet)
    for which in (slice(0, None, 2), slice(1, None, 2)):
        expected_s = lindley(starts_s[which], tokens[which] * STEP_S)
        assert np.abs(waits_s[which] - expected_s).max() < ROUNDING_S


def test_programs_with_tool_gaps_have_the_throughput_of_the_machine_repairman() -> None:
    """Four programs of 400 turns with exponential service S and gaps Z: p0 = 1 ÷ Σ 4! ÷ (4 − k)!
    (S ÷ Z)ᵏ, and the machine is busy 1 − p0 of the time until the first program ends."""
    tokens = tokens_of("M", 1600).reshape(4, 400)
    gaps_s = np.random.default_rng(2).exponential(1.0, (4, 400))
    programs = [
        Program(
            f"p{k}", tuple(Turn(16, int(n), tool_gap_s=float(z)) for n, z in zip(*of, strict=True))
        )
        for k, of in enumerate(zip(tokens, gaps_s, strict=True))
    ]
    turns: list[dict[str, Any]] = []
    replay(programs, None, 4, engine(1), into(turns))
    last_s = min(
        max(t["finished_at_s"] for t in turns if t["program_id"] == p.id) for p in programs
    )
    ended = sum(turn["finished_at_s"] <= last_s for turn in turns)
    service_s = tokens.mean() * STEP_S
    ratio = service_s / gaps_s.mean()
    idle = 1 / sum(factorial(4) / factorial(4 - k) * ratio**k for k in range(5))
    assert ended / last_s == pytest.approx((1 - idle) / service_s, rel=0.03)


@pytest.mark.parametrize(("load", "low"), [(0.5, 0.07), (0.8, 0.24)])
def test_gaps_normalised_in_blocks_of_50_would_shorten_waits(load: float, low: float) -> None:
    """Why arrivals are not smoothed (docs/design/statistics.md). M/D/1."""
    starts_s = starts(load / SERVICE_S, MANY)
    gaps_s = np.diff(starts_s, prepend=0.0).reshape(-1, 50)
    even_s = gaps_s / gaps_s.mean(axis=1, keepdims=True) * SERVICE_S / load
    services_s = np.full(MANY, SERVICE_S)
    shorter = lindley(np.cumsum(even_s), services_s).mean() / lindley(starts_s, services_s).mean()
    assert shorter == pytest.approx(1 - low, abs=0.02)
