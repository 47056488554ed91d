"""Draws the turns of programs of one kind. In: the kind's figures. Out: turns.

Each step's output, gap and new tokens are quantiles at correlated probabilities: normal variables
that are the sum of the program's level, a part that neighbouring steps share, and an independent
part. Tools follow each other as a Markov chain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from traces.program import Provenance, Turn
from traces.synthesis.distributions import inverse_normal, normal, stratified
from traces.synthesis.fitted import EARLY, LEVELS, NO_TOOL, SERIES, ProgramKind, Table
from traces.synthesis.prompt_lengths import (
    ANSWER_DROPPED,
    APPENDED,
    CASES,
    EDITED,
    ProgramSteps,
    prompts,
)
from traces.synthesis.quantiles import AT

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
GRID = (np.arange(2000) + 0.5) / 2000


def at(table: Table | None, u: Floats) -> Floats:
    """Return the quantiles of a table, or zeros without one."""
    return np.zeros_like(u) if table is None else np.interp(u, AT, table)


class TurnDraws:
    """Draws programs of one kind, as often as needed."""

    def __init__(self, kind: ProgramKind) -> None:
        self._kind = kind
        self._levels = np.linalg.cholesky(np.array(kind.level_correlation))
        self._within = np.linalg.cholesky(np.array(kind.step_correlation))
        self._shift = _shift(kind)
        self._names = list(kind.tools)
        self._calls = [() if name == NO_TOOL else (name,) for name in self._names]
        self._first = _edges({name: tool.first for name, tool in kind.tools.items()}, self._names)
        # A tool that was always the last of its program is followed by a first tool.
        self._next = [_edges(kind.tools[n].next, self._names) or self._first for n in self._names]

    def draw(self, programs: int, rng: np.random.Generator) -> list[tuple[Turn, ...]]:
        kind = self._kind
        independent = rng.standard_normal((programs, len(LEVELS)))
        independent[:, 0] = inverse_normal(stratified(programs, rng))
        levels = independent @ self._levels.T
        u = normal(levels[:, :2])
        counts = np.maximum(np.rint(at(kind.turns, u[:, 0])).astype(np.int64) - 1, 0)
        first = np.rint(at(kind.first_prompt_tokens, u[:, 1])).astype(int).tolist()
        last = np.rint(at(kind.last_output_tokens, rng.random(programs))).astype(int).tolist()
        limits = at(kind.limit_tokens, rng.random(programs)).tolist()
        steps = self._steps(counts, levels[:, 2:], rng)
        ends = np.cumsum(counts).tolist()
        return [
            self._turns(prompt, answer, limit, steps.between(end - count, end))
            for prompt, answer, limit, end, count in zip(
                first, last, limits, ends, counts.tolist(), strict=True
            )
        ]

    def _turns(
        self, first: int, last_output: int, limit: float, steps: ProgramSteps
    ) -> tuple[Turn, ...]:
        outputs = [*steps.output, max(last_output, 1)]
        lengths = prompts(self._kind, max(first, 1), outputs, limit, steps)
        calls = [*zip(steps.tools, steps.gap_s, strict=True), ((), 0.0)]
        return tuple(
            Turn(tokens, output, kept, tools, None, gap_s, Provenance.SYNTHESISED)
            for (tokens, kept), output, (tools, gap_s) in zip(lengths, outputs, calls, strict=True)
        )

    def _steps(self, counts: Ints, levels: Floats, rng: np.random.Generator) -> ProgramSteps:
        """Return the steps of all programs, program by program."""
        history, total = self._kind.history, int(counts.sum())
        index = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        tools = self._chain(index.tolist(), rng)
        u = normal(self._scores(index, np.repeat(levels, counts, axis=0), rng))
        values = np.empty((total, 3))
        for number, name in enumerate(self._names):
            tool, chosen = self._kind.tools[name], np.flatnonzero(tools == number)
            if chosen.size:
                values[chosen, 0] = at(tool.output_tokens, u[chosen, 0])
                values[chosen, 1] = at(tool.gap_s, u[chosen, 1])
                values[chosen, 2] = at(tool.new_tokens, u[chosen, 2])
        cases = self._cases(index, tools, rng)
        dropped, edited = cases == ANSWER_DROPPED, cases == EDITED
        values[dropped, 2] = at(history.answer_dropped_new_tokens, u[dropped, 2])
        values[edited, 2] = at(history.edited_new_tokens, u[edited, 2])
        other = rng.random(total)
        return ProgramSteps(
            tools=[self._calls[tool] for tool in tools.tolist()],
            output=np.maximum(np.rint(values[:, 0]), 1).astype(int).tolist(),
            gap_s=values[:, 1].round(3).tolist(),
            case=cases.tolist(),
            new=(values[:, 2] * self._kind.growth).tolist(),
            edited_lost=np.rint(at(history.edited_lost_tokens, other)).astype(int).tolist(),
            rewritten_kept=np.rint(at(history.rewritten_kept_tokens, other)).astype(int).tolist(),
            rewritten_ratio=at(history.rewritten_prompt_ratio, u[:, 2]).tolist(),
            compacted_ratio=at(history.compacted_prompt_ratio, other).tolist(),
        )

    def _chain(self, index: list[int], rng: np.random.Generator) -> Ints:
        tools, tool = list[int](), 0
        for place, u in zip(index, rng.random(len(index)).tolist(), strict=True):
            tool = bisect_right(self._next[tool] if place else self._first, u)
            tools.append(tool)
        return np.array(tools, dtype=np.int64)

    def _scores(self, index: Ints, levels: Floats, rng: np.random.Generator) -> Floats:
        """Return the normal variables of output, gap and new tokens for each step."""
        shape = (index.size, len(SERIES))
        white = rng.standard_normal(shape) @ self._within.T
        innovations = rng.standard_normal(shape) @ self._within.T
        ranges = np.searchsorted(EARLY, index, side="right") - 1
        starts = index == 0
        scores = np.empty(shape)
        for column, name in enumerate(SERIES):
            series = self._kind.series[name]
            neighbours = _decaying(innovations[:, column], starts, series.decay)
            rest = max(0.0, 1 - series.program - series.neighbours)
            scores[:, column] = (
                np.sqrt(series.program) * levels[:, column]
                + np.sqrt(series.neighbours) * neighbours
                + np.sqrt(rest) * white[:, column]
                + np.array(series.early)[ranges]
                - self._shift[column]
            )
        return scores

    def _cases(self, index: Ints, tools: Ints, rng: np.random.Generator) -> Ints:
        history, u = self._kind.history, rng.random(index.size)
        without = np.array([name == NO_TOOL for name in self._names], dtype=bool)[tools]
        result = np.full(index.size, APPENDED, dtype=np.int64)
        for cases, chosen in (
            (history.first, index == 0),
            (history.tool, (index > 0) & ~without),
            (history.pause, (index > 0) & without),
        ):
            if edges := _edges(cases.model_dump(), CASES):
                result[chosen] = np.searchsorted(edges, u[chosen], side="right")
        return result


def _edges(counts: Mapping[str, int], names: Sequence[str]) -> list[float]:
    """Return the cumulative shares, the last of which is above 1; nothing if all counts are 0."""
    total = sum(counts.values())
    if not total:
        return []
    edges = list(accumulate(counts.get(name, 0) / total for name in names))
    last = max(number for number, name in enumerate(names) if counts.get(name, 0))
    return [*edges[:last], 2.0]


def _decaying(innovations: Floats, starts: NDArray[np.bool_], decay: float) -> Floats:
    """Return series with variance 1 whose correlation is `decay` from one step to the next, each
    beginning at one of the starts."""
    if not decay:
        return innovations
    fresh = np.sqrt(1 - decay**2)
    result, value = list[float](), 0.0
    for innovation, start in zip(innovations.tolist(), starts.tolist(), strict=True):
        value = innovation if start else decay * value + fresh * innovation
        result.append(value)
    return np.array(result)


def _shift(kind: ProgramKind) -> list[float]:
    """Return the mean of each level over steps. Tables describe all steps, most of which are in
    long programs, while levels have mean 0 over programs."""
    steps = np.maximum(at(kind.turns, GRID) - 1, 0)
    if not steps.sum():
        return [0.0] * len(SERIES)
    mean = float((steps * inverse_normal(GRID)).sum() / steps.sum())
    return [
        float(np.sqrt(kind.series[name].program)) * kind.level_correlation[0][2 + column] * mean
        for column, name in enumerate(SERIES)
    ]
