"""Fits the coefficients of a profile's step formula to measured times.

In: observations, each with the work and the seconds of a request or a step. Out: the coefficients,
in whole picoseconds and none negative, with the least sum of squared *relative* errors, so that
steps of milliseconds count as much as prompts of seconds.

The formula has one knee, where computing T tokens takes as long as reading the weights:
max(weights, T · token) = token · max(knee, T). For a given knee it is linear. The knee is searched
on a coarse grid, and then around the best point of that grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from servers.basics.clock import PS_PER_S

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
    """Context tokens that the decodes read, summed over the batch."""
    pairs: int
    """Number of query-key pairs of the prefill."""
    request: bool
    """Whether the time includes a request's round trip."""
    seconds: float


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Steps(StrictModel):
    """Coefficients of `servers.profiles.Profile`."""

    base_ps: int = Field(ge=0)
    weights_ps: int = Field(ge=0)
    token_ps: int = Field(ge=0)
    sequence_ps: int = Field(ge=0, default=0)
    context_ps: int = Field(ge=0)
    pair_ps: int = Field(ge=0)
    request_ps: int = Field(ge=0)
    """Round trip of a request: HTTP and tokenizer. Not part of a step."""

    def seconds(self, o: Observation) -> float:
        steps = sum(self.base_ps + max(self.weights_ps, t * self.token_ps) for t in o.steps)
        steps += len(o.steps) * o.sequences * self.sequence_ps
        attention = o.context * self.context_ps + o.pairs * self.pair_ps
        return (steps + attention + o.request * self.request_ps) / PS_PER_S


def prompt(tokens: int, cached_tokens: int, step_tokens: int, seconds: float) -> Observation:
    """Return the observation of a prompt alone in the engine, with `tokens` to compute after the
    cached ones, in full chunks and a rest. Each token attends to itself and to all earlier ones."""
    full, rest = divmod(tokens, step_tokens)
    steps = (step_tokens,) * full + ((rest,) if rest else ())
    pairs = tokens * cached_tokens + tokens * (tokens + 1) // 2
    return Observation(steps, 1, 0, pairs, True, seconds)


def decode_step(batch: int, context: float, seconds: float) -> Observation:
    """Return the observation of a decode step. `context` is each turn's context in tokens."""
    return Observation((batch,), batch, batch * context, 0, False, seconds)


def fit_steps(observations: Sequence[Observation]) -> Steps:
    max_tokens = max(max(o.steps) for o in observations)
    knees: list[float] = np.geomspace(1, max_tokens, KNEES).tolist()
    best = min(range(KNEES), key=lambda k: _fit_at(observations, knees[k])[0])
    bounds = knees[max(best - 1, 0)], knees[min(best + 1, KNEES - 1)]
    fine_knees: list[float] = np.linspace(*bounds, KNEES).tolist()
    fits = [(*_fit_at(observations, knee), knee) for knee in fine_knees]
    _, (base, token, sequence, context, pair, request), knee = min(fits, key=lambda fit: fit[0])
    seconds = (base, knee * token, token, sequence, context, pair, request)
    ps = (round(PS_PER_S * s) for s in seconds)
    return Steps.model_validate(dict(zip(Steps.model_fields, ps, strict=True)))


def _fit_at(observations: Sequence[Observation], knee: float) -> tuple[float, list[float]]:
    terms = [
        [
            len(o.steps),
            sum(max(knee, t) for t in o.steps),
            len(o.steps) * o.sequences,
            o.context,
            o.pairs,
            o.request,
        ]
        for o in observations
    ]
    return least_squares(np.array(terms, float), np.array([o.seconds for o in observations]))


def least_squares(terms: Floats, seconds: Floats) -> tuple[float, list[float]]:
    """Return the sum of squared relative errors and the weights of the terms, none negative.

    Tries all subsets of the few terms. The optimum is the best unconstrained solution among those
    without a negative weight (Karush-Kuhn-Tucker)."""
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
    """Return base_s, linear_s and quadratic_s of base + linear · n + quadratic · n²."""
    n = np.array(tokens, float)
    terms = np.stack([np.ones(len(n)), n, n**2], axis=1)
    _, (base_s, linear_s, quadratic_s) = least_squares(terms, np.array(seconds))
    return base_s, linear_s, quadratic_s
