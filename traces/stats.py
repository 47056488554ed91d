"""Computes Table 2 and Figure 5 of Continuum v3 for any list of programs.

In: programs. Out: `Statistics`, in seconds and tokens, with sample standard deviations (n − 1). A
tool gap follows a turn that calls a tool. The gap after any other turn is a pause: a person thinks,
or the answer was refused. As in Figure 5, a call counts for its first tool, so that
`cd x && pytest` is a `cd`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.program import Program

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    count: int
    mean: float
    sd: float


@dataclass(frozen=True, slots=True)
class GapStats:
    """The tool gaps of one tool, or of all tools."""

    tool: str
    calls: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    slowest_tenth_share: float
    """The share of the total delay taken by the slowest 10% of the calls."""


@dataclass(frozen=True, slots=True)
class Statistics:
    programs: int
    sub_agents: int
    turns: Spread
    tool_gap_s: Spread
    final_context_tokens: Spread
    """Prompt and output of a program's last turn."""
    summed_tokens: Spread
    """The sum of the prompts and outputs of all its turns."""
    prompt_tokens: Spread
    output_tokens: Spread
    kept_share: float
    """Kept tokens / prompt tokens: the hit rate of an infinite cache without sharing between
    programs."""
    pause_s: Spread
    gap_provenance: dict[str, int]
    all_tools: GapStats
    tools: list[GapStats]
    """By total delay, largest first."""
    burstiness: float | None
    """(s - m) / (s + m), for the mean m and deviation s of times between recorded starts of jobs
    (Goh and Barabasi 2008). -1: regular, 0: Poisson arrivals, towards 1: bursts; None: unknown."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def statistics(programs: Sequence[Program]) -> Statistics:
    turns = [turn for program in programs for turn in program.turns]
    waits = [turn for program in programs for turn in program.turns[:-1]]
    by_tool: dict[str, list[float]] = defaultdict(list)
    for turn in waits:
        if turn.tools:
            by_tool[turn.tools[0]].append(turn.tool_gap_s)
    tools = [_tool_gaps(tool, gaps) for tool, gaps in by_tool.items()]
    prompts = sum(turn.prompt_tokens for turn in turns)
    return Statistics(
        programs=len(programs),
        sub_agents=sum(program.fork is not None for program in programs),
        turns=_moments([len(program.turns) for program in programs]),
        tool_gap_s=_moments([turn.tool_gap_s for turn in waits if turn.tools]),
        final_context_tokens=_moments([p.turns[-1].context_tokens for p in programs]),
        summed_tokens=_moments([sum(t.context_tokens for t in p.turns) for p in programs]),
        prompt_tokens=_moments([turn.prompt_tokens for turn in turns]),
        output_tokens=_moments([turn.output_tokens for turn in turns]),
        kept_share=sum(turn.kept_tokens for turn in turns) / max(prompts, 1),
        pause_s=_moments([turn.tool_gap_s for turn in waits if not turn.tools]),
        gap_provenance=dict(sorted(Counter(t.gap_provenance.value for t in waits).items())),
        all_tools=_tool_gaps("all tools", [gap for gaps in by_tool.values() for gap in gaps]),
        tools=sorted(tools, key=lambda t: (-t.calls * t.mean_s, t.tool)),
        burstiness=_burstiness(programs),
    )


def _burstiness(programs: Sequence[Program]) -> float | None:
    starts = [program.recorded_start_s for program in programs if program.fork is None]
    known = sorted(start_s for start_s in starts if start_s is not None)
    between = _moments([b - a for a, b in pairwise(known)])
    if between.count < 2 or not between.mean:
        return None
    return (between.sd - between.mean) / (between.sd + between.mean)


def _moments(values: Sequence[float]) -> Spread:
    array = np.asarray(values, dtype=float)
    if not array.size:
        return Spread(0, 0.0, 0.0)
    sd = float(array.std(ddof=1)) if array.size > 1 else 0.0
    return Spread(array.size, float(array.mean()), sd)


def _tool_gaps(tool: str, gaps_s: Sequence[float]) -> GapStats:
    array = np.asarray(gaps_s, dtype=float)
    if not array.size:
        return GapStats(tool, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p90, p99 = np.quantile(array, [0.5, 0.9, 0.99])
    return GapStats(
        tool, array.size, float(array.mean()), float(p50), float(p90), float(p99),
        share_of_slowest(array, 0.1),
    )  # fmt: skip


def share_of_slowest(gaps_s: Array, fraction: float) -> float:
    """Return one minus the Lorenz curve at `1 - fraction`. If the fraction is not a whole number of
    calls, the last one counts in part."""
    total = float(gaps_s.sum())
    if total == 0:
        return 0.0
    slowest = np.sort(gaps_s)[::-1]
    calls = fraction * slowest.size
    whole = int(calls)
    part = (calls - whole) * float(slowest[whole]) if whole < slowest.size else 0.0
    return (float(slowest[:whole].sum()) + part) / total
