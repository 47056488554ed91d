"""Random jobs with sub-agents, for the formats that `bench traces convert --to` writes."""

from __future__ import annotations

from hypothesis import strategies as st

from traces import Fork, Program, Provenance, Turn
from traces.check import check

TOOLS = st.sampled_from([("ls",), ("cat", "grep"), ("pytest",), ()])
SECONDS = st.integers(0, 40_000).map(lambda ms: ms / 1e3)
"""Whole milliseconds, the resolution of all formats."""


@st.composite
def turns(draw: st.DrawFn, *, append_only: bool = False) -> tuple[Turn, ...]:
    made: list[Turn] = []
    context = 0
    for _ in range(draw(st.integers(1, 4))):
        kept = context if append_only else draw(st.integers(0, context))
        made.append(
            Turn(
                kept + draw(st.integers(1, 3000)),
                draw(st.integers(1, 800)),
                kept,
                draw(TOOLS),
                "rm -rf secret",
                draw(SECONDS),
                draw(st.sampled_from(Provenance)),
            )
        )
        context = made[-1].context_tokens
    return tuple(made)


@st.composite
def jobs(draw: st.DrawFn, *, append_only: bool = False) -> list[Program]:
    """Draw some jobs, each with up to two sub-agents, which may have one too."""
    programs: list[Program] = []
    for name in "ab"[: draw(st.integers(1, 2))]:
        start_s = draw(st.none() | SECONDS)
        job = [Program(name, draw(turns(append_only=append_only)), recorded_start_s=start_s)]
        for number in range(draw(st.integers(0, 2))):
            parent = draw(st.sampled_from(job))
            after = draw(st.integers(0, len(parent.turns) - 1))
            later = st.none()
            if after + 1 < len(parent.turns):
                later |= st.integers(after + 1, len(parent.turns) - 1)
            provenance = draw(st.sampled_from(Provenance))
            fork = Fork(parent.id, after, draw(SECONDS), draw(later), provenance)
            own = draw(turns(append_only=append_only))
            job.append(Program(f"{parent.id}/{number}", own, fork=fork))
        programs += job
    check(programs)
    return programs
