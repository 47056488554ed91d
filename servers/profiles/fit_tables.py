"""Fits the coefficients of the step formula of `TableProfile` to times from operator tables.

In: steps, each with its work and its seconds. Out: the coefficients, in whole picoseconds and none
negative, with the least sum of squared *relative* errors. With fixed knots the formula is linear in
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from servers.basics.clock import PS_PER_S
from servers.basics.least_squares import nonnegative_factors

KNOTS = tuple(2**k for k in range(14))
"""Tokens of a step between which the time of the matrix products is linear: 1 to 8,192. The experts
that a step reads grow with each of its first tokens."""
RISES_FROM = KNOTS.index(64)
"""From this knot on, a step with more tokens takes no less time. Below it the time may fall: tables
of FP8 experts have batches of one turn that are slower than batches of eight."""


@dataclass(frozen=True, slots=True)
class TableStep:
    """A step with at most one prefill chunk."""

    tokens: int
    decodes: int
    context: int
    """Context tokens that its decodes read, summed over the batch."""
    pairs: int
    """Number of query-key pairs of its prefill chunk."""
    seconds: float

    @classmethod
    def of(
        cls, chunk: int, cached_tokens: int, batch: int, context: int, seconds: float
    ) -> TableStep:
        """A chunk after cached tokens (0 tokens: none) and a batch of decodes, each at `context`
        tokens."""
        pairs = chunk * cached_tokens + chunk * (chunk + 1) // 2
        return cls(chunk + batch, batch, batch * context, pairs, seconds)

    @property
    def terms(self) -> list[float]:
        """The factor of each coefficient, in the order of `fit_table_steps`."""
        ramps = [1.0, *(min(max(self.tokens - a, 0) / (b - a), 1.0) for a, b in pairwise(KNOTS))]
        values = [here - after for here, after in pairwise(ramps[: RISES_FROM + 1])]
        mean = self.context // self.decodes if self.decodes else 0
        flags = [float(self.decodes > 0), float(self.pairs > 0)]
        beyond = max(0, self.tokens - KNOTS[-1])
        return [*values, *ramps[RISES_FROM:], beyond, *flags, mean, self.context, self.pairs]


@dataclass(frozen=True, slots=True)
class TableCoefficients:
    """Fields of `servers.profiles.TableProfile`. The tables contain neither the time between steps
    nor the time of a request, so these are 0, and `knots` includes the time to read the weights."""

    knots: tuple[tuple[int, int], ...]
    token_ps: int
    decode_ps: int
    prefill_ps: int
    mean_context_ps: int
    context_ps: int
    pair_ps: int
    base_ps: int = 0
    weights_ps: int = 0
    sequence_ps: int = 0
    request_ps: int = 0

    def seconds(self, step: TableStep) -> float:
        values = [ps for _, ps in self.knots]
        rises = [b - a for a, b in pairwise(values[RISES_FROM:])]
        weights = [*values[: RISES_FROM + 1], *rises]
        weights += [self.token_ps, self.decode_ps, self.prefill_ps, self.mean_context_ps]
        weights += [self.context_ps, self.pair_ps]
        return float(np.dot(step.terms, weights)) / PS_PER_S


def fit_table_steps(seen: Sequence[TableStep]) -> TableCoefficients:
    relative = np.array([step.terms for step in seen]) / np.array([[s.seconds] for s in seen])
    size = relative.max(axis=0)
    scale = np.where(size > 0, size, 1.0)
    found = nonnegative_factors(relative / scale, np.ones(len(seen)))
    seconds: list[float] = (found / scale).tolist()
    values = [*seconds[:RISES_FROM], *np.cumsum(seconds[RISES_FROM : len(KNOTS)]).tolist()]
    knots = zip(KNOTS, (round(PS_PER_S * value) for value in values), strict=True)
    others = [round(PS_PER_S * value) for value in seconds[len(KNOTS) :]]
    return TableCoefficients(tuple(knots), *others)
