"""Step times of a profile at a few fixed points, for `bench profile --show`.

In: a profile. Out: prompts, decode steps and a mixed step with their milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from servers.profiles.profile import Profile

PREFILLS = ((8192, 0), (32768, 0), (1024, 31744))
"""(tokens to compute, cached tokens before them)."""
DECODES = ((1, 2048), (32, 2048), (32, 16384))
"""(turns, context tokens of each)."""
MIXED = ((2048, 7168, 32, 16384),)
"""The mean chunk of 2,048 tokens of a prompt of 16,384, which attends to as many pairs as an eighth
of that prompt, and a batch of decodes."""
PS_PER_MS = 1_000_000_000
ONE_STEP = 1 << 20
"""Tokens of a step that computes any of these prompts whole."""


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    kind: str
    what: dict[str, int]
    ms: float
    fits: bool = True
    """Whether the step fits the KV memory and the longest context of the profile."""
    one_step_ms: float | None = None
    """Time of a prompt that one step computes whole, as in operator tables."""
    tables_ms: float | None = None
    """Time of the operator tables, without CPU time between steps."""

    def json(self) -> dict[str, str | int | float]:
        tables = {"one_step_ms": self.one_step_ms, "tables_ms": self.tables_ms}
        known = {name: ms for name, ms in tables.items() if ms is not None}
        return {"kind": self.kind, **self.what, "ms": self.ms, "fits": self.fits, **known}

    def __str__(self) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in self.what.items())


def reference_steps(profile: Profile, step_tokens: int) -> list[ReferenceStep]:
    """Return the points in a fixed order. A prompt is computed in chunks of `step_tokens`, without
    the round trip of its request."""
    points = [
        ReferenceStep(
            "prefill",
            {"tokens": tokens, "cached": cached},
            _prompt_ps(profile, step_tokens, tokens, cached) / PS_PER_MS,
        )
        for tokens, cached in PREFILLS
    ]
    points += [
        ReferenceStep(
            "decode",
            {"batch": batch, "context": context},
            profile.batch_ps([], [context] * batch) / PS_PER_MS,
        )
        for batch, context in DECODES
    ]
    points += [
        ReferenceStep(
            "mixed",
            {"tokens": tokens, "cached": cached, "batch": batch, "context": context},
            profile.batch_ps([(tokens, cached)], [context] * batch) / PS_PER_MS,
        )
        for tokens, cached, batch, context in MIXED
    ]
    kv_tokens = profile.kv_tokens(step_tokens, profile.max_model_len)
    return [replace(each, fits=_fits(each.what, profile, kv_tokens)) for each in points]


def _fits(what: dict[str, int], profile: Profile, kv_tokens: int) -> bool:
    prompt, context = what.get("tokens", 0) + what.get("cached", 0), what.get("context", 0)
    total = prompt + what.get("batch", 0) * context
    return max(prompt, context) <= profile.max_model_len and total <= kv_tokens


def beside_tables(
    points: Sequence[ReferenceStep], profile: Profile, tables_ms: Sequence[float | None]
) -> list[ReferenceStep]:
    """Return the points with the milliseconds of operator tables, None where unknown. The tables
    compute a prompt in one step, and so does `one_step_ms`."""
    return [
        replace(
            point,
            tables_ms=ms,
            one_step_ms=whole.ms if point.kind == "prefill" and ms is not None else None,
        )
        for point, whole, ms in zip(
            points, reference_steps(profile, ONE_STEP), tables_ms, strict=True
        )
    ]


def _prompt_ps(profile: Profile, step_tokens: int, tokens: int, cached: int) -> int:
    total = 0
    for begin in range(0, tokens, step_tokens):
        chunk = min(step_tokens, tokens - begin)
        total += profile.batch_ps([(chunk, cached + begin)], [])
    return total
