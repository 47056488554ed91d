"""Small random workloads for the engine: programs, their arrivals, a machine with little memory."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from servers.admission import Admission
from servers.profiles import Profile
from servers.sim import Limits, Offload
from traces import Fork, Program, Provenance, SharedPrefix, Turn

BLOCK = 16


def profile(
    kv_blocks: int = 64,
    max_model_len: int = 100_000,
    block_tokens: int = BLOCK,
    **changes: int,
) -> Profile:
    """Return a slow machine: a step takes 10 ms and a little more for each token."""
    numbers = {
        "base_ps": 1_000_000_000,
        "weights_ps": 9_000_000_000,
        "token_ps": 90_000_000,
        "sequence_ps": 0,
        "request_ps": 0,
        "context_ps": 80_000,
        "pair_ps": 3_000,
    } | changes
    return Profile(
        hardware="test-gpu",
        model="test-model",
        provenance="analytic",
        kv_blocks=kv_blocks,
        block_tokens=block_tokens,
        max_model_len=max_model_len,
        kv_bytes_per_token=1000,
        dram_bytes_per_s=1e6,
        ssd_bytes_per_s=2e5,
        **numbers,
    )


@dataclass(frozen=True)
class World:
    programs: list[Program]
    starts_s: list[float]
    profile: Profile
    limits: Limits
    offload: Offload | None


@st.composite
def turns(draw: st.DrawFn) -> tuple[Turn, ...]:
    generated: list[Turn] = []
    context = 0
    for _ in range(draw(st.integers(1, 5))):
        kept = draw(st.sampled_from([context, context, context, context // 2, 0]))
        new = draw(st.integers(1, 90))
        tools = draw(st.sampled_from([(), ("ls",), ("pytest",), ("cd", "make")]))
        gap_s = draw(st.sampled_from([0.0, 0.013, 0.4, 1.7, 6.0]))
        turn = Turn(
            kept + new, draw(st.integers(1, 40)), kept, tools, None, gap_s, Provenance.SYNTHESISED
        )
        generated.append(turn)
        context = turn.context_tokens
    return tuple(generated)


@st.composite
def worlds(draw: st.DrawFn, offload: bool | None = None) -> World:
    prefix = draw(st.sampled_from([None, SharedPrefix("system", 37)]))
    roots = [
        Program(f"p{i}", generated, prefix)
        for i, generated in enumerate(draw(st.lists(turns(), min_size=1, max_size=7)))
    ]
    programs = list(roots)
    for i, root in enumerate(roots):
        if draw(st.integers(0, 4)) == 0:
            after = draw(st.integers(0, len(root.turns) - 1))
            joins = draw(st.booleans()) and after + 1 < len(root.turns)
            fork = Fork(root.id, after, 0.2, after + 1 if joins else None)
            programs.append(Program(f"p{i}/sub", draw(turns()), prefix, fork))
    largest = max(-(-p.peak_context_tokens // BLOCK) for p in programs)
    gaps = draw(st.lists(st.floats(0, 0.5), min_size=len(roots), max_size=len(roots)))
    starts = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    seqs = draw(st.integers(1, 6))
    tiers = draw(st.booleans()) if offload is None else offload
    dram_gb = draw(st.sampled_from([2e-4, 1e-3]))
    load_ps, load_token_ps = draw(st.sampled_from([(0, 0), (3_000_000_001, 9_999_999)]))
    long_prefill = draw(st.sampled_from([0, 0, 5, 40]))
    return World(
        programs,
        starts,
        profile(
            kv_blocks=largest + draw(st.integers(0, 40)),
            load_ps=load_ps,
            load_token_ps=load_token_ps,
            graph_tokens=draw(st.sampled_from([0, 0, 40, 512])),
            request_token_ps=draw(st.sampled_from([0, 0, 7_000_001, 900_000_000])),
            schedules_ahead=draw(st.booleans()),
        ),
        Limits(
            seqs,
            draw(st.sampled_from([max(seqs, 16), 64, 2048])),
            draw(st.sampled_from(Admission)),
            long_prefill=long_prefill,
            long_prefill_adaptive=bool(long_prefill) and draw(st.booleans()),
            watermark=draw(st.sampled_from([0.0, 0.0, 0.1, 0.9])),
        ),
        Offload(dram_gb, draw(st.sampled_from([0.0, 1e-3])), chunk_tokens=32) if tiers else None,
    )
