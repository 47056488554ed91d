"""Step times of a profile at a few fixed points, for `bench profile show`.

In: a profile. Out: prompts, decode steps and a mixed step with their milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from servers.profiles.profile import Profile

PREFILLS = ((8192, 0), (32768, 0), (1024, 31744))
"""Tokens to compute, and cached tokens before them."""
DECODES = ((1, 2048), (32, 2048), (32, 16384))
"""Turns, and context tokens of each."""
MIXED = ((2048, 7168, 32, 16384),)
"""The mean chunk of 2,048 tokens of a prompt of 16,384, which attends to as many pairs as an eighth
of that prompt, and a batch of decodes."""
PS_PER_MS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Point:
    kind: str
    what: dict[str, int]
    ms: float

    def json(self) -> dict[str, str | int | float]:
        return {"kind": self.kind, **self.what, "ms": self.ms}

    def __str__(self) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in self.what.items())


def reference_steps(profile: Profile, step_tokens: int) -> list[Point]:
    """Return the points in a fixed order. A prompt is computed in chunks of `step_tokens`, without
    the round trip of its request."""
    points = [
        Point(
            "prefill",
            {"tokens": tokens, "cached": cached},
            _prompt_ps(profile, step_tokens, tokens, cached) / PS_PER_MS,
        )
        for tokens, cached in PREFILLS
    ]
    points += [
        Point(
            "decode",
            {"batch": batch, "context": context},
            profile.step_ps(batch, batch, batch * context, 0) / PS_PER_MS,
        )
        for batch, context in DECODES
    ]
    points += [
        Point(
            "mixed",
            {"tokens": tokens, "cached": cached, "batch": batch, "context": context},
            profile.step_ps(tokens + batch, batch + 1, batch * context, pairs_of(tokens, cached))
            / PS_PER_MS,
        )
        for tokens, cached, batch, context in MIXED
    ]
    return points


def _prompt_ps(profile: Profile, step_tokens: int, tokens: int, cached: int) -> int:
    total = 0
    for begin in range(0, tokens, step_tokens):
        chunk = min(step_tokens, tokens - begin)
        total += profile.step_ps(chunk, 1, 0, pairs_of(chunk, cached + begin))
    return total


def pairs_of(chunk: int, cached: int) -> int:
    """Return the query-key pairs of a prefill chunk after `cached` tokens."""
    return chunk * cached + chunk * (chunk + 1) // 2
