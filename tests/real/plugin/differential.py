"""Compare every decision of a policy in vLLM's scheduler and in virtual time, on random workloads.

    python -m tests.real.plugin.differential [FIRST [COUNT [ADMISSION [LAYERS]]]]

under vLLM's interpreter.

Both take single steps with the same clock. The comparison covers the turns and token counts of each
step, hits, preemptions, pins and why they end, and the times of every turn to the picosecond. Seeds
rotate through the policies. ADMISSION is whole-prompt (the default) or first-chunk, and does not
change the workloads. LAYERS is full (the default), or windows, uneven, states or chunks, which
gives the machine several KV groups, all but one of them with a sliding window (uneven: and blocks
of another length), states or local chunks.
Virtual time then keeps copies of blocks as vLLM does, and no difference is explained by them.
LAYERS is also speculation: full attention with speculative decoding; and pipeline: full attention
in two to four stages of layers, with vLLM's batch queue.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from vllm import __version__
from vllm.v1.core.block_pool import BlockHashToBlockMap

from servers.admission import Admission
from servers.policies.base import Costs
from servers.profiles import Profile, costs
from servers.sim import Engine, Limits, PipelineEngine
from servers.variants import make_policy, variant, variants
from servers.vllm.plugin.kv_manager import ReclaimingKVManager
from servers.vllm.virtual_time.engine import VirtualVllm
from tests.lines import Line
from tests.real.outcomes import Outcome, first_difference, outcome
from tests.real.plugin.pipelined import PipelinedVllm
from tests.real.plugin.random_worlds import (
    World,
    chunked,
    pipelined,
    speculating,
    stateful,
    uneven,
    unruly,
    windowed,
    world,
)

GOES_ON = [int(number) for number in re.findall(r"\d+", __version__)[:2]] >= [0, 33]
"""Whether vLLM computes the turns behind one that was preempted for want of its own blocks. Virtual
time ends the step there, as vLLM 0.32 does."""
POLICIES = [v.name for v in variants("all") if not {"tier", "unlimited KV"} & {*v.needs}]
HOLDING = [
    f"tests.sim.holding:{policy}"
    for policy in (
        "HoldsBack",
        "HoldsBack(pressure=False)",
        "HoldsBackAndDisplaces",
        "LeavesRoom",
    )
]
"""Policies that hold turns back at random."""
ROTATION = [*POLICIES, *HOLDING]

Step = tuple[int, list[tuple[str, int, int]]]
"""The time in ps, and for each turn in the batch its program, arrival number and tokens."""


class _Recording:
    """Virtual time, of which the batch of each step is recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[Step] = []

    def _plan(self: Any, batch: Any) -> None:
        chunks = {s.view.id: n for s, n in batch.chunks}
        skipped = {s.view.id for s in batch.skipped}
        drafted = getattr(self._decodes, "tokens", {})
        turns = [
            (
                str(s.submission.program_id),
                s.view.id,
                drafted.get(s.view.id, chunks.get(s.view.id, 1)),
            )
            for s in self.scheduler.running.in_step()
            if s.view.id in chunks or (s.joined_tick is not None and s.view.id not in skipped)
        ]
        self.batches.append((self.now_ps, sorted(turns, key=str)))
        super()._plan(batch)  # type: ignore[misc]


class StepwiseSim(_Recording, Engine):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, strides=False, **kwargs)


class StepwisePipeline(_Recording, PipelineEngine):
    pass


class StepwiseVllm(VirtualVllm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, strides=False, **kwargs)
        self.batches: list[Step] = []

    def _compute(self, output: Any, steady: bool) -> None:
        self.batches.append((self.now_ps, _turns_of(self, output)))
        super()._compute(output, steady)


class StepwisePipelinedVllm(PipelinedVllm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[Step] = []

    def _begin(self, output: Any) -> Any:
        if output.num_scheduled_tokens:
            self.batches.append((self.now_ps, _turns_of(self, output)))
        return super()._begin(output)


def _turns_of(engine: VirtualVllm, output: Any) -> list[tuple[str, int, int]]:
    turns = [
        (str(engine._turns[key].submission.program_id), int(key), chunk)
        for key, chunk in output.num_scheduled_tokens.items()
    ]
    return sorted(turns, key=str)


def play(played: World, seed: int, policy: str, kind: Any, **kwargs: Any) -> Outcome:
    """Run the workload on an engine of `kind` with the policy."""
    sizes = played.profile, played.limits
    make = partial(kind, make_policy(variant(policy), _costs(*sizes)), *sizes, **kwargs)
    maker = unruly(make, seed) if played.unruly else make
    return outcome(played, maker, oracle=bool(variant(policy).reference), text=_sorted)


def _costs(profile: Profile, limits: Limits) -> Costs:
    """Return costs of the machine on which prefill is expensive enough that policies pin contexts
    through most gaps."""
    exact = costs(profile, step_tokens=limits.step_tokens, offload=False)
    return replace(exact, prefill_s=lambda tokens: tokens / 50)


def _sorted(lines: list[Line]) -> list[str]:
    """Format records for comparison; simultaneous events have no order, so lines are sorted."""
    return sorted(
        (f"{line['t']:015.9f} " if "t" in line else "")
        + repr(sorted((name, value) for name, value in line.items() if name != "t"))
        for line in lines
    )


class Verdict(NamedTuple):
    seed: int
    policy: str
    difference: str
    """The first difference; empty if there is none."""
    copies: int
    """How many blocks vLLM stored twice."""
    counts: Counter[str]
    passed: int = 0
    """How often vLLM went on with the turns behind a preempted one (`GOES_ON`)."""

    @property
    def is_unexplained(self) -> bool:
        return bool(self.difference) and not self.copies and not self.passed


def compare(seed: int, policy: str, played: World | None = None) -> Verdict:
    played = played or world(seed)
    kinds: tuple[type, type] = StepwiseVllm, StepwiseSim
    options: dict[str, Any] = {}
    if played.stages is not None:
        kinds, options = (StepwisePipelinedVllm, StepwisePipeline), {"stages": played.stages}
    with _CountingReasons() as reasons:
        vllm = play(played, seed, policy, kinds[0], **options)
    sim = play(played, seed, policy, kinds[1], **options)
    counts = Counter(event.partition("('event', '")[2].partition("'")[0] for event in vllm.events)
    counts["steps"] = len(vllm.batches)
    return Verdict(
        seed, policy, first_difference(vllm, sim), reasons.copies, counts, reasons.passed
    )


class _CountingReasons:
    """Count how often vLLM gives a hash to a second block, because two turns computed the same, and
    how often a turn is preempted for itself with others behind it."""

    def __enter__(self) -> _CountingReasons:
        self.copies = self.passed = 0
        self._insert = insert = BlockHashToBlockMap.insert
        self._make_room = make_room = ReclaimingKVManager._make_room_for_running

        def counting(blocks: Any, key: Any, block: Any) -> None:
            self.copies += blocks.get_one_block(key) is not None
            insert(blocks, key, block)

        def making_room(manager: Any, request: Any, *args: Any) -> bool:
            again = make_room(manager, request, *args)
            alone = manager._scheduler.running[-1] is request
            self.passed += GOES_ON and not again and not alone and manager._victim is request
            return again

        BlockHashToBlockMap.insert = counting
        ReclaimingKVManager._make_room_for_running = making_room  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        BlockHashToBlockMap.insert = self._insert
        ReclaimingKVManager._make_room_for_running = self._make_room  # type: ignore[method-assign]


CHANGED = {
    "windows": windowed,
    "uneven": uneven,
    "states": stateful,
    "chunks": chunked,
    "speculation": speculating,
    "pipeline": pipelined,
}
ONE_COPY = ("full", "pipeline")
"""Layers of which virtual time keeps one copy of a block."""


def check(seed: int, admission: Admission, layers: str) -> Verdict:
    played = world(seed, admission=admission)
    policy = ROTATION[seed % len(ROTATION)]
    if layers != "full":
        played = CHANGED[layers](played, seed)
    verdict = compare(seed, policy, played)
    return verdict if layers in ONE_COPY else verdict._replace(copies=0)


def main(
    first: int = 0,
    count: int = 10_000,
    admission: str = Admission.WHOLE_PROMPT,
    layers: str = "full",
) -> int:
    started_s, seen, unexplained, copies = time.monotonic(), Counter[str](), [], 0
    passed = 0
    workers = os.cpu_count() or 1
    seeds = range(first, first + count)
    checked = partial(check, admission=Admission(admission), layers=layers)
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for done, verdict in enumerate(pool.imap_unordered(checked, seeds, 20)):
            seen += verdict.counts
            seen["worlds"] += 1
            explained = bool(verdict.difference) and not verdict.is_unexplained
            copies += explained and verdict.copies > 0
            passed += explained and verdict.copies == 0
            if verdict.is_unexplained:
                unexplained.append(verdict)
                print(f"seed {verdict.seed}, {verdict.policy}: {verdict.difference[:300]}")
            if done % 500 == 499:
                print(f"{done + 1} of {count}", file=sys.stderr)
    print(
        f"admission {admission}, layers {layers}: {seen['worlds']} workloads, "
        f"{seen['steps']} steps, {seen['preempted']} preemptions, "
        f"{seen['pinned']} pins, {seen['aborted']} aborts in {time.monotonic() - started_s:.0f} s: "
        f"{len(unexplained)} unexplained differences, {copies} where vLLM held a block twice"
        + (f", {passed} where it went on behind a preempted turn" if GOES_ON else "")
    )
    return 1 if unexplained else 0


if __name__ == "__main__":
    numbers = [int(number) for number in sys.argv[1:3]]
    sys.exit(main(*numbers, *sys.argv[3:5]))
