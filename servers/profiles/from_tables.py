"""Defines and fits profiles of operator tables: the file that `bench profile --from` writes.

A file (`turnstile-tables-1`) has the times from the tables, their origin, and the profile fitted to
them. Times are seconds, lengths are tokens, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from servers.basics.clock import PS_PER_S
from servers.basics.errors import InvalidInput
from servers.basics.least_squares import nonnegative_factors
from servers.profiles.fit import Steps, StrictModel
from servers.profiles.measured import (
    MIN_MEASUREMENTS,
    DecodeTimes,
    Errors,
    Measured,
    PrefillTimes,
    decode_name,
    errors_of,
    fitted_curve,
    large_errors,
    prompt_name,
)
from servers.profiles.profile import CAPTURED, Profile

KNOTS = tuple(2**k for k in range(14))
"""Tokens of a step between which the time of the matrix products is linear: 1 to 8,192. The experts
that a step reads grow with each of its first tokens."""
RISES_FROM = KNOTS.index(64)
"""From this knot on, a step with more tokens takes no less time. Below it the time may fall: some
tables of FP8 products have batches of one turn that are slower than batches of eight."""
OTHERS = ("token_ps", "decode_ps", "prefill_ps", "mean_context_ps", "context_ps", "pair_ps")
"""Coefficients besides those of the knots, in the order of `TableStep.terms`."""


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
        """The factor of each coefficient: of the knots, and of `OTHERS`."""
        ramps = [1.0, *(min(max(self.tokens - a, 0) / (b - a), 1.0) for a, b in pairwise(KNOTS))]
        values = [here - after for here, after in pairwise(ramps[: RISES_FROM + 1])]
        mean = self.context // self.decodes if self.decodes else 0
        flags = [float(self.decodes > 0), float(self.pairs > 0)]
        beyond = max(0, self.tokens - KNOTS[-1])
        return [*values, *ramps[RISES_FROM:], beyond, *flags, mean, self.context, self.pairs]


class TableSteps(Steps):
    """Coefficients of `servers.profiles.TableProfile`. The tables contain neither the time between
    steps nor that of a request, and `knots` includes the time to read the weights."""

    knots: tuple[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)]], ...]
    decode_ps: int = Field(ge=0)
    prefill_ps: int = Field(ge=0)
    mean_context_ps: int = Field(ge=0)

    @field_validator("knots")
    @classmethod
    def _rising_from_one(cls, knots: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        tokens = [at for at, _ in knots]
        if tokens[:1] != [1] or any(a >= b for a, b in pairwise(tokens)):
            raise ValueError("tokens of knots must rise from 1")
        return knots

    def step_seconds(self, step: TableStep) -> float:
        values = [ps for _, ps in self.knots]
        rises = [b - a for a, b in pairwise(values[RISES_FROM:])]
        weights = [*values[: RISES_FROM + 1], *rises, *(getattr(self, name) for name in OTHERS)]
        return float(np.dot(step.terms, weights)) / PS_PER_S


def fit_table_steps(seen: Sequence[TableStep]) -> TableSteps:
    relative = np.array([step.terms for step in seen]) / np.array([[s.seconds] for s in seen])
    size = relative.max(axis=0)
    scale = np.where(size > 0, size, 1.0)
    found = nonnegative_factors(relative / scale, np.ones(len(seen)))
    seconds: list[float] = (found / scale).tolist()
    values = [*seconds[:RISES_FROM], *np.cumsum(seconds[RISES_FROM : len(KNOTS)]).tolist()]
    knots = zip(KNOTS, (round(PS_PER_S * value) for value in values), strict=True)
    others = (round(PS_PER_S * value) for value in seconds[len(KNOTS) :])
    none = {"base_ps": 0, "weights_ps": 0, "request_ps": 0}
    return TableSteps(knots=tuple(knots), **none, **dict(zip(OTHERS, others, strict=True)))


class MixedTime(StrictModel):
    """Time of a step with one prefill chunk of a prompt and a batch of decodes."""

    tokens: int = Field(ge=1)
    cached_tokens: int = Field(ge=0)
    batch: int = Field(ge=1)
    context: int = Field(ge=1)
    seconds: float = Field(gt=0)


class Tables(StrictModel):
    """The operator tables that times were computed from."""

    package: str
    """Name and version of the Python package that contains them."""
    system: str
    """Name of the machine in the package."""
    engine_version: str


class FromTables(Measured):
    """A profile of operator tables. Each time covers one step, without the CPU time between steps;
    the KV memory and the link to the host come from the analytic profile."""

    provenance = "operator-table"
    format: Literal["turnstile-profile-1", "turnstile-tables-1"] = "turnstile-tables-1"
    tables: Tables
    host_bytes_per_s: float = Field(gt=0)
    """From host to GPUs."""
    steps: TableSteps
    mixed: tuple[MixedTime, ...] = Field(min_length=1)
    mixed_errors: Errors

    @property
    def reload_s_per_token(self) -> float:
        return self.kv_bytes_per_token / self.host_bytes_per_s

    def profile(self) -> Profile:
        return replace(super().profile(), graph_tokens=CAPTURED[-1])

    @property
    def errors(self) -> dict[str, Errors]:
        return {**super().errors, "mixed steps": self.mixed_errors}

    def notes(self) -> tuple[str, ...]:
        tables = self.tables
        return (
            f"step times come from operator tables: {tables.package}, {tables.system},"
            f" {self.engine}; they exclude the CPU time between steps",
            *large_errors(self.errors),
        )


def fitted_to_tables(
    prefill: tuple[PrefillTimes, ...],
    decode: tuple[DecodeTimes, ...],
    mixed: tuple[MixedTime, ...],
) -> dict[str, Any]:
    """The fields of `FromTables` that follow from the times, each the time of one step."""
    by_kind = {
        "prefill_errors": [
            (
                prompt_name(p.tokens, p.cached_tokens),
                TableStep.of(p.tokens, p.cached_tokens, 0, 0, median(p.seconds)),
            )
            for p in prefill
        ],
        "decode_errors": [
            (
                decode_name(d.batch, d.context),
                TableStep.of(0, 0, d.batch, round(d.context), median(d.seconds)),
            )
            for d in decode
        ],
        "mixed_errors": [
            (
                f"{prompt_name(m.tokens, m.cached_tokens)} with {decode_name(m.batch, m.context)}",
                TableStep.of(m.tokens, m.cached_tokens, m.batch, m.context, m.seconds),
            )
            for m in mixed
        ],
    }
    if any(len(steps) < MIN_MEASUREMENTS for steps in by_kind.values()):
        raise InvalidInput(
            f"{len(prefill)} prefill, {len(decode)} decode and {len(mixed)} mixed steps fit the KV "
            f"memory, and a fit needs {MIN_MEASUREMENTS} of each; use more --gpus"
        )
    found = fit_table_steps([step for steps in by_kind.values() for _, step in steps])
    return {
        **fitted_curve(prefill),
        "steps": found,
        **{
            field: errors_of(
                [step.seconds for _, step in steps],
                [found.step_seconds(step) for _, step in steps],
                [name for name, _ in steps],
            )
            for field, steps in by_kind.items()
        },
    }
