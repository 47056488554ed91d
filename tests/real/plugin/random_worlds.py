"""Small random workloads on a machine with little memory, by seed; half of them hardly fit."""

from __future__ import annotations

import random
from typing import NamedTuple

from servers.profiles import Profile
from servers.sim import Limits
from tests.sim.worlds import BLOCK, profile
from traces import Program, Provenance, SharedPrefix, Turn


def turns(rng: random.Random, most_new: int, most_out: int, rewrites: float) -> tuple[Turn, ...]:
    made: list[Turn] = []
    context = 0
    for _ in range(rng.randint(1, 6)):
        kept = rng.randint(0, context) if rng.random() < rewrites else context
        new, out = rng.randint(1, most_new), rng.randint(1, most_out)
        gap_s = rng.choice([0.0, 0.013, 0.1, 0.4, 1.7, 6.0])
        tools = rng.choice([("ls",), ("pytest",), ("cd", "make")])
        made.append(Turn(kept + new, out, kept, tools, None, gap_s, Provenance.SYNTHESISED))
        context = made[-1].context_tokens
    return tuple(made)


class World(NamedTuple):
    programs: list[Program]
    starts_s: list[float]
    profile: Profile
    limits: Limits


def world(seed: int, prefix: bool) -> World:
    rng = random.Random(seed)
    most_new, most_out = rng.choice([(40, 40), (30, 80), (120, 60), (300, 60), (16, 100)])
    rewrites = rng.choice([0.0, 0.0, 0.25])
    shared = SharedPrefix("system", rng.choice([16, 37, 64])) if prefix else None
    programs = [
        Program(f"p{i}", turns(rng, most_new, most_out, rewrites), shared)
        for i in range(rng.randint(2, 9))
    ]
    largest = max(-(-p.peak_context_tokens // BLOCK) for p in programs)
    spare = rng.choice([0, rng.randint(0, 6), rng.randint(0, 40), rng.randint(40, 200)])
    seqs = rng.randint(1, 8)
    budget = max(seqs, rng.choice([16, 20, 64, 256, 2048]))
    spread_s = rng.choice([1e-6, 0.5])
    starts_s = sorted(rng.random() * spread_s for _ in programs)
    return World(programs, starts_s, profile(largest + spare), Limits(seqs, budget))
