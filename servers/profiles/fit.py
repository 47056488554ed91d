"""Coefficients of a profile's step formula, from measured times.

In: observations, each a request or a step with what it computed and the seconds that it took. Out:
the coefficients, in whole picoseconds and none negative, with the least sum of squared *relative*
errors, so that steps of milliseconds count as much as prompts of seconds.

The formula has one knee, where T tokens cost as much as reading the weights:
max(weights, T · token) = token · max(knee, T). For a given knee it is linear. The knee is searched
on a coarse grid, and then around the best point of that grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from servers.clock import PS_PER_S

Floats = NDArray[np.float64]
KNEES = 80


@dataclass(frozen=True, slots=True)
class Observation:
    """A request with one output token (`request`), or one decode step of a batch."""

    steps: tuple[int, ...]
    """Number of tokens that each of its steps computes."""
    sequences: int
    """Number of turns in each step."""
    context: float
    """Context tokens that its decodes read, summed over the batch."""
    pairs: int
    """Number of query-key pairs of its prefill."""
    request: bool
    """Whether the time includes a request's round trip."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Coefficients:
    base_ps: int
    weights_ps: int
    token_ps: int
    sequence_ps: int
    context_ps: int
    pair_ps: int
    request_ps: int
    """Round trip of a request: HTTP and tokenizer. Not part of a step."""

    def seconds(self, seen: Observation) -> float:
        steps = sum(self.base_ps + max(self.weights_ps, t * self.token_ps) for t in seen.steps)
        steps += len(seen.steps) * seen.sequences * self.sequence_ps
        attention = seen.context * self.context_ps + seen.pairs * self.pair_ps
        return (steps + attention + seen.request * self.request_ps) / PS_PER_S


def prompt(tokens: int, cached_tokens: int, step_tokens: int, seconds: float) -> Observation:
    """A prompt alone in the engine, with `tokens` to compute after the cached ones: full chunks and
    a rest. Each token attends to itself and to all before it."""
    full, rest = divmod(tokens, step_tokens)
    steps = (step_tokens,) * full + ((rest,) if rest else ())
    pairs = tokens * cached_tokens + tokens * (tokens + 1) // 2
    return Observation(steps, 1, 0, pairs, True, seconds)


def decode_step(batch: int, context: float, seconds: float) -> Observation:
    """`context` is the context of each turn in the batch, in tokens."""
    return Observation((batch,), batch, batch * context, 0, False, seconds)


def fit_steps(seen: Sequence[Observation]) -> Coefficients:
    most = max(max(observation.steps) for observation in seen)
    knees: list[float] = np.geomspace(1, most, KNEES).tolist()
    best = min(range(KNEES), key=lambda k: _fit_at(seen, knees[k])[0])
    between = knees[max(best - 1, 0)], knees[min(best + 1, KNEES - 1)]
    near: list[float] = np.linspace(*between, KNEES).tolist()
    fits = [(*_fit_at(seen, knee), knee) for knee in near]
    _, (base, token, sequence, context, pair, request), knee = min(fits, key=lambda fit: fit[0])
    found = (base, knee * token, token, sequence, context, pair, request)
    ps = [round(PS_PER_S * s) for s in found]
    return Coefficients(*ps)


def _fit_at(seen: Sequence[Observation], knee: float) -> tuple[float, list[float]]:
    terms = [
        [
            len(s.steps),
            sum(max(knee, t) for t in s.steps),
            len(s.steps) * s.sequences,
            s.context,
            s.pairs,
            s.request,
        ]
        for s in seen
    ]
    return least_squares(np.array(terms, float), np.array([s.seconds for s in seen]))


def least_squares(terms: Floats, seconds: Floats) -> tuple[float, list[float]]:
    """Sum of squared relative errors, and the weights of the terms, none negative: the best of all
    choices of terms whose plain solution is positive (Karush-Kuhn-Tucker; few terms)."""
    relative = terms / seconds[:, None]
    scale = np.where((size := np.abs(relative).max(axis=0)) > 0, size, 1.0)
    relative = relative / scale
    best, chosen = float(len(seconds)), np.zeros(terms.shape[1])
    for count in range(1, terms.shape[1] + 1):
        for columns in combinations(range(terms.shape[1]), count):
            part = relative[:, columns]
            weights, *_ = np.linalg.lstsq(part, np.ones(len(seconds)), rcond=None)
            error = float(((part @ weights - 1) ** 2).sum())
            if (weights >= 0).all() and error < best:
                best, chosen = error, np.zeros(terms.shape[1])
                chosen[list(columns)] = weights
    return best, [float(weight) for weight in chosen / scale]


def fit_quadratic(tokens: Sequence[int], seconds: Sequence[float]) -> tuple[float, float, float]:
    """base_s, linear_s, quadratic_s of base + linear · n + quadratic · n²."""
    n = np.array(tokens, float)
    terms = np.stack([np.ones(len(n)), n, n**2], axis=1)
    _, (base_s, linear_s, quadratic_s) = least_squares(terms, np.array(seconds))
    return base_s, linear_s, quadratic_s
