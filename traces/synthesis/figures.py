"""Compares programs with the figures of a set.

In: programs. Out: the figures of each quantity, and their distances to another set's. Times are in
seconds, lengths in tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from traces.program import Program
from traces.synthesis.fitted import FittedQuantity

AT = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""The probabilities of a figure's quantiles."""
MIN_CALLS = 50
"""Tools with fewer calls have no figures."""
MAX_TOOLS = 8
FIRST_TURNS = 11
"""The mean number of turns in Table 2 of Continuum v3, rounded: real programs cut to it."""


def figures(programs: Sequence[Program]) -> dict[str, FittedQuantity]:
    return {name: figure(values) for name, values in samples(programs).items() if values}


def figure(values: Sequence[float]) -> FittedQuantity:
    array = np.asarray(values, dtype=float)
    sd = float(array.std(ddof=1)) if array.size > 1 else 0.0
    return FittedQuantity(
        count=array.size,
        mean=_rounded(float(array.mean())),
        sd=_rounded(sd),
        quantiles=tuple(_rounded(q) for q in np.quantile(array, AT).tolist()),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def samples(programs: Sequence[Program]) -> dict[str, list[float]]:
    """Return the values of each quantity over the jobs, with tools ordered by number of calls."""
    jobs = [program for program in programs if program.fork is None]
    agents = [program for program in programs if program.fork is not None]
    steps = [step for job in jobs for step in pairwise(job.turns)]
    result: dict[str, list[float]] = {
        "turns": [len(job.turns) for job in jobs],
        "first prompt": [job.turns[0].prompt_tokens for job in jobs],
        "new tokens per later turn": [after.new_tokens for _, after in steps],
        "output tokens": [turn.output_tokens for job in jobs for turn in job.turns],
        "final context": [job.turns[-1].context_tokens for job in jobs],
        "longest context": [job.peak_context_tokens for job in jobs],
        "new tokens, sum": [sum(turn.new_tokens for turn in job.turns) for job in jobs],
        "output tokens, sum": [sum(turn.output_tokens for turn in job.turns) for job in jobs],
        "contexts, sum": [sum(turn.context_tokens for turn in job.turns) for job in jobs],
        f"contexts, sum over {FIRST_TURNS} turns": [
            sum(turn.context_tokens for turn in job.turns[:FIRST_TURNS]) for job in jobs
        ],
        "kept share of prompts": [
            sum(t.kept_tokens for t in job.turns) / sum(t.prompt_tokens for t in job.turns)
            for job in jobs
        ],
        "gaps, sum": [sum(turn.tool_gap_s for turn in job.turns[:-1]) for job in jobs],
        "gap after a tool": [a.tool_gap_s for a, _ in steps if a.tools],
        "pause without a tool": [a.tool_gap_s for a, _ in steps if not a.tools],
        "turns of a sub-agent": [len(agent.turns) for agent in agents],
        "first prompt of a sub-agent": [agent.turns[0].prompt_tokens for agent in agents],
        "sum of new tokens of a sub-agent": [
            sum(turn.new_tokens for turn in agent.turns) for agent in agents
        ],
    }
    by_tool: dict[str, list[float]] = defaultdict(list)
    for before, _ in steps:
        if before.tools:
            by_tool[before.tools[0]].append(before.tool_gap_s)
    largest = sorted(by_tool.items(), key=lambda item: (-len(item[1]), item[0]))[:MAX_TOOLS]
    if len(by_tool) > 1:
        result |= {f"gap after {name}": gaps for name, gaps in largest if len(gaps) >= MIN_CALLS}
    return result


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of drawn values of a quantity from real values."""

    quantity: str
    real: FittedQuantity
    drawn: FittedQuantity
    ks: float
    """The largest difference of the two distribution functions at the real quantiles."""

    def relative_error(self, statistic: str) -> float | None:
        """Return drawn / real − 1 of a statistic; None if the real one is 0."""
        real, drawn = value_of(self.real, statistic), value_of(self.drawn, statistic)
        return drawn / real - 1 if real else None

    def as_json(self) -> dict[str, Any]:
        return {
            "quantity": self.quantity,
            "real": self.real.model_dump(),
            "drawn": self.drawn.model_dump(),
            "ks": self.ks,
        }


def value_of(figure: FittedQuantity, statistic: str) -> float:
    """Return the mean, the sd, or a quantile such as p50 or p99."""
    if statistic.startswith("p"):
        return figure.quantiles[AT.index(int(statistic[1:]) / 100)]
    return float(getattr(figure, statistic))


def distances(real: Mapping[str, FittedQuantity], drawn: Sequence[Program]) -> Iterator[Distance]:
    """Yield the distance of each quantity that both sets have."""
    values = samples(drawn)
    for name, figure_ in real.items():
        if values.get(name):
            yield Distance(name, figure_, figure(values[name]), _ks(figure_, values[name]))


def _ks(real: FittedQuantity, values: Sequence[float]) -> float:
    """Return the largest difference at the real quantiles. A frequent real value is a quantile at
    several probabilities, and drawn values may agree with any of them."""
    array = np.sort(np.asarray(values, dtype=float))
    worst = 0.0
    for p, quantile in zip(AT, real.quantiles, strict=True):
        half = 0.5 if quantile >= 1 else 0.0  # lengths are whole numbers
        below = np.searchsorted(array, quantile - half, "left") / array.size
        up_to = np.searchsorted(array, quantile + half, "right") / array.size
        worst = max(worst, float(below) - p, p - float(up_to))
    return worst
