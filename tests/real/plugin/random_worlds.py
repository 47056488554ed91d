"""Small random workloads on a machine with little memory, by seed.

Half of them hardly fit. Clients are unruly in some: they give turns up, name no program, give two
programs one name, or do not say which turn is the last.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from harness.replay.virtual import OnEnd
from servers.clock import PS_PER_S
from servers.profiles import Profile
from servers.sim import Limits, Submission
from tests.sim.worlds import BLOCK, profile
from traces import Fork, Program, Provenance, SharedPrefix, Turn

GAPS_S = (0.0, 0.013, 0.1, 0.4, 1.7, 6.0)
SIZES = ((40, 40), (30, 80), (120, 60), (300, 60), (16, 100), (33, 33))
"""Most new and most answered tokens of a turn."""


class World(NamedTuple):
    programs: list[Program]
    starts_s: list[float]
    profile: Profile
    limits: Limits
    unruly: bool


def world(seed: int, *, prefix: bool | None = None, unruly: bool | None = None) -> World:
    rng = random.Random(seed)
    prefix = rng.random() < 0.25 if prefix is None else prefix
    unruly = rng.random() < 0.25 if unruly is None else unruly
    size, rewrites, aligned = rng.choice(SIZES), rng.choice((0.0, 0.0, 0.25)), rng.random() < 0.2
    shared = SharedPrefix("system", rng.choice((16, 37, 64, 200))) if prefix else None
    programs = [
        Program(f"p{i}", _turns(rng, *size, rewrites, aligned), shared)
        for i in range(rng.randint(2, 9))
    ]
    programs += [
        _sub_agent(rng, root, _turns(rng, *size, rewrites, aligned))
        for root in programs
        if rng.random() < 0.1
    ]
    largest = max(-(-p.peak_context_tokens // BLOCK) for p in programs)
    spare = rng.choice((0, rng.randint(0, 6), rng.randint(0, 40), rng.randint(40, 200)))
    seqs = rng.randint(1, 8)
    budget = max(seqs, rng.choice((16, 17, 20, 64, 256, 2048)))
    spread_s = rng.choice((1e-6, 0.5))
    starts_s = sorted(rng.random() * spread_s for p in programs if p.fork is None)
    machine = profile(largest + spare, sequence_ps=rng.choice((0, 700_000_000)))
    return World(programs, starts_s, machine, Limits(seqs, budget), unruly)


def _turns(
    rng: random.Random, most_new: int, most_out: int, rewrites: float, aligned: bool
) -> tuple[Turn, ...]:
    """`aligned`: prompts and contexts end where blocks end, where mistakes like to be."""
    made: list[Turn] = []
    context = 0
    for _ in range(rng.randint(1, 6)):
        kept = rng.randint(0, context) if rng.random() < rewrites else context
        new, out = rng.randint(1, most_new), rng.randint(1, most_out)
        if aligned:
            kept -= kept % BLOCK
            new, out = (
                -(-new // BLOCK) * BLOCK,
                max(out // BLOCK * BLOCK, BLOCK) + rng.randint(0, 1),
            )
        tools = rng.choice((("ls",), ("pytest",), ("cd", "make")))
        gap_s = rng.choice(GAPS_S)
        made.append(Turn(kept + new, out, kept, tools, None, gap_s, Provenance.SYNTHESISED))
        context = made[-1].context_tokens
    return tuple(made)


def _sub_agent(rng: random.Random, root: Program, turns: tuple[Turn, ...]) -> Program:
    after = rng.randint(0, len(root.turns) - 1)
    joins = rng.random() < 0.5 and after + 1 < len(root.turns)
    fork = Fork(root.id, after, 0.2, after + 1 if joins else None)
    return Program(f"{root.id}/sub", turns, root.prefix, fork)


def unruly(make: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """The engine that `make` makes, with clients that do not behave; alike for every engine."""

    def made(*, on_end: OnEnd) -> Any:
        engine = make(on_end=on_end)
        submit, sent = engine.submit, Counter[str | None]()

        def submitted(submission: Submission, at_ps: int) -> Any:
            whose = submission.program_id
            sent[whose] += 1
            habits = random.Random(f"{seed} {whose}")
            told = submission if habits.random() < 0.7 else replace(submission, is_last=None)
            name = habits.choice((whose, whose, whose, None, "everybody"))
            served = submit(replace(told, program_id=name), at_ps)
            whim = random.Random(f"{seed} {whose} {sent[whose]}")
            if whim.random() < 0.08:
                patience_s = whim.choice((0.0, 0.01, 0.1, 1.0))
                engine.abort(served, at_ps + round(patience_s * PS_PER_S))
            return served

        engine.submit = submitted
        return engine

    return made
