"""Small random workloads on a machine with little memory, by seed.

Half of them hardly fit. In some, clients are unruly: they abort turns, send no program id, use one
id for two programs, or do not mark the last turn.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from servers.admission import Admission
from servers.basics.clock import PS_PER_S
from servers.profiles import Profile, WindowTimes
from servers.profiles.kv_memory import EVEN, STATE, STATE_INSIDE, Groups, Lengths
from servers.profiles.layout import Stages
from servers.sim import Limits, Submission
from tests.sim.worlds import BLOCK, profile
from traces import Fork, Program, Provenance, SharedPrefix, Turn

GAPS_S = (0.0, 0.013, 0.1, 0.4, 1.7, 6.0)
SIZES = ((40, 40), (30, 80), (120, 60), (300, 60), (16, 100), (33, 33))
"""Maximum numbers of new prompt tokens and of output tokens of a turn."""
WINDOWED: tuple[Groups, ...] = (
    (128, None),
    (None, 33),
    (16, None),
    (300, 300, None),
    (40, 40, 40, 40, 40, None),
    (64, 64, None, 64),
)
"""KV groups of models with sliding windows shorter and longer than most turns of these workloads.
gpt-oss has two groups and Gemma 3 six or seven; windows also end inside blocks."""


CHUNKED: tuple[Groups, ...] = (
    (-16, None),
    (None, -64),
    (-48, -48, -48, None),
    (None, -304, -304, -304),
    (-128, None, -128),
)
"""KV groups of models with chunked local attention. Llama 4 has three groups with chunks."""
STATEFUL: tuple[Groups, ...] = (
    (STATE, None),
    (None, STATE),
    (STATE, STATE, STATE, None),
    (STATE_INSIDE, None),
    (None, STATE_INSIDE, STATE_INSIDE, STATE_INSIDE, STATE_INSIDE),
)
"""KV groups of models with states. Qwen3-Next has three groups of states, Nemotron-3 four."""


class World(NamedTuple):
    programs: list[Program]
    starts_s: list[float]
    profile: Profile
    limits: Limits
    unruly: bool
    stages: Stages | None = None
    """Of a pipeline."""


def world(
    seed: int,
    *,
    prefix: bool | None = None,
    unruly: bool | None = None,
    admission: Admission = Admission.WHOLE_PROMPT,
) -> World:
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
    ahead = random.Random(f"ahead {seed}").random() < 0.5
    machine = replace(machine, schedules_ahead=ahead)
    if not unruly:  # A turn in the API server cannot be aborted.
        token_ps = random.Random(f"request {seed}").choice((0, 0, 7_000_001, 900_000_000))
        machine = replace(machine, request_token_ps=token_ps)
    limits = Limits(seqs, budget, admission, **_headroom(seed))
    return World(programs, starts_s, machine, limits, unruly)


def _headroom(seed: int) -> dict[str, Any]:
    """Return settings that leave room for other turns, of which most workloads have one. With caps
    of a few tokens `agentix` displaces turns before their prompts are computed, for ever."""
    rng = random.Random(f"headroom {seed}")
    most = rng.choice((0, 0, 0, 16, 33, 100))
    return {
        "long_prefill": most,
        "long_prefill_adaptive": bool(most) and rng.random() < 0.5,
        "watermark": rng.choice((0.0, 0.0, 0.01, 0.07, 0.3)),
    }


def windowed(played: World, seed: int, lengths: Lengths = EVEN) -> World:
    """Return the workload on a machine with sliding-window layers and as much spare memory."""
    rng = random.Random(f"groups {seed}")
    grouped = _grouped(played, rng.choice(WINDOWED), rng, lengths=lengths)
    window = max(filter(None, grouped.kv_groups))
    times = WindowTimes(window, rng.choice((0, 50_000)), 7_000)
    return played._replace(profile=replace(grouped, window=times))


def uneven(played: World, seed: int) -> World:
    """Return the workload of `windowed` with blocks of another length in the groups with a window
    than in the one with full attention, as Gemma 4 and MiMo-V2 have."""
    lengths = random.Random(f"lengths {seed}").choice(((2, 1), (2, 1), (1, 2), (4, 1), (1, 3)))
    return windowed(played, seed, lengths)


def chunked(played: World, seed: int) -> World:
    """Return the workload on a machine with chunked local attention and as much spare memory."""
    rng = random.Random(f"chunks {seed}")
    grouped = _grouped(played, rng.choice(CHUNKED), rng)
    chunk = -min(filter(None, grouped.kv_groups))
    times = WindowTimes(chunk, rng.choice((0, 50_000)), 7_000, chunked=True)
    return played._replace(profile=replace(grouped, window=times))


def stateful(played: World, seed: int) -> World:
    """Return the workload on a machine with layers that keep a state and as much spare memory.
    Blocks are also longer than the chunks of prompts, as with vLLM's defaults they may be."""
    rng = random.Random(f"states {seed}")
    grouped = _grouped(played, rng.choice(STATEFUL), rng, block=rng.choice((BLOCK, BLOCK, 64)))
    return played._replace(profile=grouped)


def speculating(played: World, seed: int) -> World:
    """Return the workload with speculative decoding. Some contexts end near the longest one."""
    rng = random.Random(f"speculation {seed}")
    drafts = rng.choice((1, 2, 3, 5, 16))
    method = rng.choice(("ngram", "eagle3", "mtp"))
    share = rng.choice((0.0, 0.4, 0.8, 1.0))
    draft = ",draft=0.05" if method != "ngram" and rng.random() < 0.5 else ""
    longest = max(program.peak_context_tokens for program in played.programs)
    capacity = played.profile.kv_blocks * BLOCK
    most = min(capacity, longest + rng.choice((0, 1, 20, 1000)))
    limits = replace(
        played.limits,
        step_tokens=max(played.limits.step_tokens, drafts + 1),
        long_prefill=played.limits.long_prefill and max(played.limits.long_prefill, drafts + 1),
        speculate=f"{method}:{drafts},accept={share}{draft}",
    )
    return played._replace(limits=limits, profile=replace(played.profile, max_model_len=most))


def pipelined(played: World, seed: int) -> World:
    """Return the workload on a machine whose layers are divided over stages."""
    rng = random.Random(f"stages {seed}")
    count, hop_ps = rng.randint(2, 4), rng.choice((0, 0, 3_000_000_001))
    return played._replace(stages=Stages(count, hop_ps, rng.choice((0, 70_001))))


def _grouped(
    played: World,
    groups: Groups,
    rng: random.Random,
    block: int = BLOCK,
    lengths: Lengths = EVEN,
) -> Profile:
    largest = max(p.peak_context_tokens for p in played.programs)
    spare = played.profile.kv_blocks - max(
        -(-p.peak_context_tokens // BLOCK) for p in played.programs
    )
    machine = replace(played.profile, kv_groups=groups, block_tokens=block, block_lengths=lengths)
    needed = machine.turn_blocks(largest, played.limits.step_tokens)
    blocks = needed + spare * rng.choice((1, len(groups))) * BLOCK // block
    return replace(machine, kv_blocks=blocks)


def _turns(
    rng: random.Random, max_new: int, max_output: int, rewrites: float, aligned: bool
) -> tuple[Turn, ...]:
    """`aligned`: prompts and contexts end at block boundaries, where mistakes are most likely."""
    made: list[Turn] = []
    context = 0
    for _ in range(rng.randint(1, 6)):
        kept = rng.randint(0, context) if rng.random() < rewrites else context
        new, out = rng.randint(1, max_new), rng.randint(1, max_output)
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
    """Wrap `make` so that its engine has unruly clients, the same for every engine."""

    def made(**options: Any) -> Any:
        engine = make(**options)
        submit, sent = engine.submit, Counter[str | None]()

        def submitted(submission: Submission, at_ps: int) -> Any:
            program = submission.program_id
            sent[program] += 1
            random_tags = random.Random(f"{seed} {program}")
            tagged = submission if random_tags.random() < 0.7 else replace(submission, is_last=None)
            name = random_tags.choice((program, program, program, None, "everybody"))
            turn = submit(replace(tagged, program_id=name), at_ps)
            random_abort = random.Random(f"{seed} {program} {sent[program]}")
            if random_abort.random() < 0.08:
                after_s = random_abort.choice((0.0, 0.01, 0.1, 1.0))
                engine.abort(turn, at_ps + round(after_s * PS_PER_S))
            return turn

        engine.submit = submitted
        return engine

    return made
