"""Step times of a profile at a few fixed points, for `bench profile --show`.

In: a profile. Out: prompts, decode steps and a mixed step with their milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from servers.profiles.profile import Profile

STEPS = (
    *((8192, 0, 0, 0), (32768, 0, 0, 0), (1024, 31744, 0, 0)),
    *((0, 0, 1, 2048), (0, 0, 32, 2048), (0, 0, 32, 16384)),
    (2048, 7168, 32, 16384),
)
"""(tokens to compute, cached tokens before them, turns that decode, context tokens of each). The
chunk of the mixed step is the mean one of a prompt of 16,384: it attends to as many pairs as an
eighth of that prompt."""
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
    kv_tokens = profile.kv_tokens(step_tokens, profile.max_model_len)
    found = []
    for tokens, cached, batch, context in STEPS:
        what = {"tokens": tokens, "cached": cached} if tokens else {}
        if batch:
            kind = "mixed" if tokens else "decode"
            what |= {"batch": batch, "context": context}
            ps = profile.batch_ps([(tokens, cached)] if tokens else [], [context] * batch)
        else:
            kind, begins = "prefill", range(0, tokens, step_tokens)
            chunks = [(min(step_tokens, tokens - n), cached + n) for n in begins]
            ps = sum(profile.batch_ps([chunk], []) for chunk in chunks)
        prompt = tokens + cached
        fits = max(prompt, context) <= profile.max_model_len
        fits = fits and prompt + batch * context <= kv_tokens
        found.append(ReferenceStep(kind, what, ps / PS_PER_MS, fits))
    return found


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
