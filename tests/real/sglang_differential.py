"""Compare every decision of SGLang's scheduler with those of its model, on random workloads.

    python -m tests.real.sglang_differential [FIRST [COUNT]]

under SGLang's interpreter.

Both take single steps with the same clock. The comparison covers the turns and token counts of each
batch, the free and the evictable memory after it, hits, retractions, and the times of every turn to
the picosecond. Then the model computes its strides, which must give the same turns.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from servers.sglang.schedulers import scheduler_of, sglang_variants
from servers.sglang.sim import SglangSim
from tests.real.outcomes import SUMMARY, Outcome, first_difference, outcome
from tests.real.plugin.random_worlds import World, world
from tests.sim.worlds import BLOCK
from traces import Program, Turn

POLICIES = ("fcfs", "lpm", "fcfs", "lpm", "fcfs(radix_cache=false)")
"""Seeds rotate through them."""
Batch = tuple[int, list[tuple[int, int]], int, int]
"""Its time in ps, the number of each turn with its tokens, and the free and evictable tokens."""


class StepwiseSim(SglangSim):
    """The model in single steps, which records each batch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, strides=False, **kwargs)
        self.batches: list[Batch] = []
        self._prompts_now: list[tuple[int, int]] = []

    def _prefill(self, batch: Any) -> None:
        chunks = [(turn, turn.end - turn.computed) for turn in batch]
        self._prompts_now = [(turn.sequence.view.id, tokens) for turn, tokens in chunks]
        super()._prefill(batch)

    def _advance(self, steps: int, duration_ps: int) -> None:
        decodes = [(turn.sequence.view.id, 1) for turn in self._running]
        turns, self._prompts_now = self._prompts_now or decodes, []
        self.batches.append((self.now_ps, turns, self.free, self.tree.evictable))
        super()._advance(steps, duration_ps)


def stepwise_sglang(*args: Any, **kwargs: Any) -> Any:
    """Return SGLang's scheduler, which records each batch."""
    from servers.sglang.virtual_time.engine import VirtualSglang

    class StepwiseSglang(VirtualSglang):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.batches: list[Batch] = []

        def _step(self, batch: Any) -> None:
            prompts = batch.forward_mode.is_extend()
            turns = [(int(req.rid), req.extend_len if prompts else 1) for req in batch.reqs]
            free = self.sglang.token_to_kv_pool_allocator.available_size()
            evictable = self.sglang.tree_cache.evictable_size()
            self.batches.append((self.now_ps, turns, free, evictable))
            super()._step(batch)

    return StepwiseSglang(*args, **kwargs)


def play(played: World, policy: str, kind: Any) -> Outcome:
    make = partial(kind, scheduler_of(sglang_variants(policy)[0]), played.profile, played.limits)
    return outcome(played, make, summary=(*SUMMARY, "usage"))


def sglang_world(seed: int) -> World:
    """Return a workload for SGLang, which leaves some of its memory free. Programs have few turns,
    since SGLang takes almost a millisecond per decode step. Half of the workloads have longer
    answers and more turns at once, so that turns are retracted; some have more programs, a few so
    many that `lpm` does not sort its queue."""
    played = world(seed, unruly=False)
    rng = random.Random(f"sglang {seed}")
    many = rng.random() < 0.02
    long = not many and rng.random() < 0.5
    turns = 1 if many else rng.choice((1, 1, 2) if long else (1, 2, 3))
    parents = {program.fork.program_id for program in played.programs if program.fork}
    programs = [
        program if program.id in parents else replace(program, turns=program.turns[:turns])
        for program in played.programs
    ]
    roots = [program for program in programs if program.fork is None]
    copies = range(20 if many else rng.choice((0, 0, 0, 1, 3)))
    more = [replace(program, id=f"{program.id}/{n}") for n in copies for program in roots]
    programs += more
    limits = played.limits
    if rng.random() < 0.5:
        limits = replace(limits, step_tokens=max(limits.step_tokens, 64))
    if long:
        programs = [_lengthen(rng, program) for program in programs]
        limits = replace(limits, max_num_seqs=16, step_tokens=max(limits.step_tokens, 16))
    largest = max(-(-program.peak_context_tokens // BLOCK) for program in programs)
    roomy = rng.randint(20, 80) if long else rng.randint(40, 200)
    spare = rng.choice((1, rng.randint(1, 6), rng.randint(1, 40), roomy))
    return World(
        programs,
        sorted([*played.starts_s, *(rng.choice(played.starts_s) for _ in more)]),
        replace(played.profile, kv_blocks=largest + spare),
        limits,
        unruly=False,
    )


def _lengthen(rng: random.Random, program: Program) -> Program:
    turns: list[Turn] = []
    before = context = 0
    for turn in program.turns:
        kept = context if turn.kept_tokens == before else turn.kept_tokens
        output = turn.output_tokens + rng.randint(0, 300)
        turns.append(
            replace(
                turn,
                prompt_tokens=kept + turn.new_tokens,
                kept_tokens=kept,
                output_tokens=output,
            )
        )
        before, context = turn.context_tokens, turns[-1].context_tokens
    return replace(program, turns=tuple(turns))


class Verdict(NamedTuple):
    seed: int
    policy: str
    difference: str
    """The first difference; empty if there is none."""
    counts: Counter[str]


def check(seed: int) -> Verdict:
    played, policy = sglang_world(seed), POLICIES[seed % len(POLICIES)]
    sglang = play(played, policy, stepwise_sglang)
    stepwise = play(played, policy, StepwiseSim)
    strides = play(played, policy, SglangSim)
    difference = first_difference(sglang, stepwise)
    difference = difference or first_difference(stepwise._replace(batches=[]), strides)
    counts = Counter(event.partition("'event': '")[2].partition("'")[0] for event in sglang.events)
    counts["batches"] = len(sglang.batches)
    return Verdict(seed, policy, difference, counts)


def main(first: int = 0, count: int = 2000) -> int:
    from servers.sglang.virtual_time.process import declare_operators, import_engine

    started_s, seen, differ = time.monotonic(), Counter[str](), 0
    _operators = declare_operators()
    import_engine()
    gc.freeze()
    seeds = range(first, first + count)
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for done, verdict in enumerate(pool.imap_unordered(check, seeds), start=1):
            seen += verdict.counts
            if verdict.difference:
                differ += 1
                print(f"seed {verdict.seed}, {verdict.policy}: {verdict.difference[:300]}")
            if done % 100 == 0:
                print(f"{done} of {count}", file=sys.stderr)
    print(
        f"{count} workloads, {seen['batches']} batches, {seen['finished']} turns, "
        f"{seen['preempted']} retractions in {time.monotonic() - started_s:.0f} s: "
        f"{differ} differences"
    )
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(*(int(number) for number in sys.argv[1:3])))
