"""Coefficients of the step formula of `TableProfile`, from times that operator tables give.

In: steps, each with what it computes and the seconds that it takes. Out: the coefficients, in whole
picoseconds and none negative, with the least sum of squared *relative* errors. With fixed knots the
formula is linear in them (`scipy.optimize.nnls`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from servers.clock import PS_PER_S

KNOTS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
"""Tokens of a step between which the time of the matrix products is linear."""


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
        """What each coefficient is multiplied with, in the order of `fit_table_steps`."""
        rises = [min(max(self.tokens - a, 0) / (b - a), 1.0) for a, b in pairwise(KNOTS)]
        mean = self.context // self.decodes if self.decodes else 0
        flags = [float(self.decodes > 0), float(self.pairs > 0)]
        beyond = max(0, self.tokens - KNOTS[-1])
        return [1.0, *rises, beyond, *flags, mean, self.context, self.pairs]


@dataclass(frozen=True, slots=True)
class TableCoefficients:
    """Fields of `servers.profiles.TableProfile`. The tables contain neither the time between steps
    nor that of a request, so these are 0, and `knots` contains what reading the weights takes."""

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
        weights = [self.knots[0][1], *(b - a for (_, a), (_, b) in pairwise(self.knots))]
        weights += [self.token_ps, self.decode_ps, self.prefill_ps, self.mean_context_ps]
        weights += [self.context_ps, self.pair_ps]
        return float(np.dot(step.terms, weights)) / PS_PER_S


def fit_table_steps(seen: Sequence[TableStep]) -> TableCoefficients:
    from scipy.optimize import nnls  # 0.4 s, which readers of a profile need not wait

    relative = np.array([step.terms for step in seen]) / np.array([[s.seconds] for s in seen])
    size = relative.max(axis=0)
    scale = np.where(size > 0, size, 1.0)
    found, _ = nnls(relative / scale, np.ones(len(seen)))
    seconds: list[float] = (found / scale).tolist()
    compute, others = seconds[: len(KNOTS)], [round(PS_PER_S * s) for s in seconds[len(KNOTS) :]]
    knots = zip(KNOTS, np.rint(PS_PER_S * np.cumsum(compute)).astype(int).tolist(), strict=True)
    return TableCoefficients(tuple(knots), *others)
