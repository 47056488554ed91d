"""Recipes of synthesised workloads, in seconds and tokens.

Published (Continuum v3, Table 2 and Figure 5; execution note): mean and deviation of turns, tool
time and tokens per program, the slowest tenth's share of the delay of `cd` and `fetch_url` calls,
and all of `execution-note`. Everything else is assumed; `docs/reference/workloads.md` gives the
basis of each assumption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from traces.synthesis.distributions import (
    Distribution,
    Lognormal,
    Normal,
    Uniform,
    Weibull,
    stratified,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TokenCount = Literal["final-context", "sum"]
"""What tokens per program means: the last turn's context, or the sum over all turns."""
WINDOW_TOKENS = 131_072
"""Context length of Llama-3.1."""
SOURCE = "recipe"
"""The first word of the source of all drawn programs."""


@dataclass(frozen=True, slots=True)
class ToolKind:
    """A kind of tool call. `weight` is its share of all calls."""

    tools: tuple[str, ...]
    weight: float
    gap_s: Distribution


_UNUSED = Uniform(1, 1)
"""Placeholder in recipes with fixed prompts."""


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    description: str
    calls: tuple[ToolKind, ...]
    prefix_tokens: int
    """System prompt and tool descriptions, the same in all programs."""
    turns: Distribution = _UNUSED
    tokens: Distribution = _UNUSED
    """Tokens per program, before scaling."""
    reading: TokenCount = "final-context"
    """What `tokens` counts."""
    scale: float = 1.0
    max_tokens: float = WINDOW_TOKENS
    """Maximum context, after scaling."""
    first_prompt: Distribution = _UNUSED
    output: Distribution = _UNUSED
    """Output tokens per turn."""
    tool_output: Distribution = _UNUSED
    """Relative sizes of tool outputs."""
    turns_tokens_correlation: float = 0.5
    prompt_tokens: tuple[int, ...] | None = None
    """Fixed prompt lengths; the calls then follow in order."""
    output_range: tuple[int, int] = (1, 1)
    """Minimum and maximum output with fixed prompts."""

    def draw_calls(self, counts: Ints, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """Draw `counts[i]` calls for each program i. Return the index into `calls` and the seconds
        of each, concatenated over the programs."""
        total = int(counts.sum())
        if self.prompt_tokens is not None:
            orders = [np.arange(count) % len(self.calls) for count in counts.tolist()]
            kinds = np.concatenate(orders) if total else np.zeros(0, dtype=np.int64)
        else:
            edges = np.cumsum([call.weight for call in self.calls])
            kinds = np.searchsorted(edges[:-1] / edges[-1], stratified(total, rng), side="right")
        gaps_s = np.empty(total)
        for kind, call in enumerate(self.calls):
            indices = np.flatnonzero(kinds == kind)
            gaps_s[indices] = call.gap_s.quantile(stratified(indices.size, rng))
        return kinds, gaps_s


def _rounded(mean: float, sd: float) -> Normal:
    """Return the normal distribution with this deviation after rounding (Sheppard: + 1/12)."""
    return Normal(mean, math.sqrt(sd**2 - 1 / 12))


def _swe_bench_calls(mean_s: float, sd_s: float, cd_share: float, cd_tail: float) -> list[ToolKind]:
    """Return fast commands, uniform on f/2 … 3f/2, and slow ones, exponential with mean m.

    Slow commands are the share p of all calls, and a tenth of the `cd` calls. With their parts A
    and B of the first and second moments, p·m = A and p·2m² = B, so m = B/2A, p = A/m. The share of
    the slowest `cd` calls is then 0.1·m / (0.1·m + 0.9·f). The fast shares and f depend on p and m,
    so the equations are iterated.
    """
    fast = {"sed": 0.28, "grep": 0.24, "cat": 0.22, "ls": 0.1, "nl": 0.08, "git": 0.08}
    slow = {"python": 0.6, "pytest": 0.4}
    other_f, m, p = 0.08, 8.0, 0.1
    for _ in range(50):
        cd_f = m * (0.1 / 0.9) * (1 / cd_tail - 1)
        cd_fast, other_fast = 0.9 * cd_share, 1 - p - 0.9 * cd_share
        a = mean_s - cd_fast * cd_f - other_fast * other_f
        b = sd_s**2 + mean_s**2 - (cd_fast * cd_f**2 + other_fast * other_f**2) * 13 / 12
        m = b / (2 * a)
        p = a / m
    calls = []
    for tool, part in fast.items():
        calls.append(ToolKind(("cd", tool), part * cd_fast, Uniform(cd_f / 2, cd_f * 1.5)))
        calls.append(ToolKind((tool,), part * other_fast, Uniform(other_f / 2, other_f * 1.5)))
    for tool, part in slow.items():
        calls.append(ToolKind(("cd", tool), part * 0.1 * cd_share, Weibull(m, 1)))
        calls.append(ToolKind((tool,), part * (p - 0.1 * cd_share), Weibull(m, 1)))
    return calls


def _bfcl_calls(mean_s: float, sd_s: float, fetch_share: float) -> list[ToolKind]:
    """Return `fetch_url` and search calls with the given moments.

    `fetch_url` has mean a, share w and E[x²] / E[x]² = q; search has b, 1 − w and r. Then
    w·a + (1 − w)·b = mean and w·q·a² + (1 − w)·r·b² = sd² + mean². The larger a is used.
    """
    # With this shape the slowest 10% have Q(1 + 1/k, ln 10) = 52.5% of the delay (Figure 5a).
    fetch, search = Weibull(1.0, 0.5806), Weibull(1.0, 2.5)
    w, q, r = fetch_share, fetch.second_over_mean_squared, search.second_over_mean_squared
    x = w * q + r * w**2 / (1 - w)
    y = -2 * r * w * mean_s / (1 - w)
    z = r * mean_s**2 / (1 - w) - sd_s**2 - mean_s**2
    a = (-y + math.sqrt(y * y - 4 * x * z)) / (2 * x)
    b = (mean_s - w * a) / (1 - w)
    return [
        ToolKind(("fetch_url",), w, Weibull(a, fetch.shape)),
        ToolKind(("duckduckgo_search",), 1 - w, Weibull(b, search.shape)),
    ]


_OUTPUT = Lognormal(median=89, sigma=math.sqrt(2 * math.log(276 / 89)))
"""Mean 276, median 89: 500 mini-swe-agent trajectories with gemini-3-pro."""

_SWE_BENCH = Recipe(
    name="swe-bench",
    description="Table 2 of Continuum v3 (SWE-Bench), its tokens read as final context",
    turns=_rounded(10.9, 2.1),
    tokens=Normal(70_126, 19_732, low=8_000, high=WINDOW_TOKENS),
    calls=tuple(_swe_bench_calls(0.925, 3.550, cd_share=0.35, cd_tail=0.941)),
    prefix_tokens=140,
    first_prompt=Lognormal(median=1_850, sigma=0.24),
    output=_OUTPUT,
    tool_output=Weibull(1.0, 1.0),
)

PUBLISHED = {
    recipe.name: recipe
    for recipe in (
        _SWE_BENCH,
        replace(
            _SWE_BENCH,
            name="swe-bench-sum",
            description="Table 2 of Continuum v3 (SWE-Bench), its tokens read as sum over turns",
            reading="sum",
        ),
        Recipe(
            name="bfcl",
            description="Table 2 of Continuum v3 (BFCL), its tokens x 0.4 read as final context",
            turns=_rounded(6.3, 2.3),
            tokens=Weibull(93_256, 1.3739),  # this shape has deviation 68,687
            scale=0.4,
            calls=tuple(_bfcl_calls(1.923, 2.133, fetch_share=0.4)),
            prefix_tokens=480,
            first_prompt=Lognormal(median=1_500, sigma=0.2),
            output=_OUTPUT,
            tool_output=Weibull(1.0, 1.0),
        ),
        Recipe(
            name="openhands",
            description="assumed statistics of OpenHands (30 turns, 60,000 tokens in the end)",
            turns=_rounded(30, 9),
            tokens=Normal(60_000, 18_000, low=12_000, high=WINDOW_TOKENS),
            calls=(
                ToolKind(("execute_bash",), 0.6, Weibull(3.0, 0.5)),
                ToolKind(("str_replace_editor",), 0.37, Uniform(0.02, 0.2)),
                ToolKind(("think",), 0.03, Uniform(0.001, 0.01)),
            ),
            prefix_tokens=5_500,
            first_prompt=Lognormal(median=7_000, sigma=0.1),
            output=_OUTPUT,
            tool_output=Weibull(1.0, 1.0),
        ),
        Recipe(
            name="execution-note",
            description="the eight fixed turns of Continuum's execution note",
            calls=(
                ToolKind(("find",), 1, Uniform(0.05, 0.15)),
                ToolKind(("cat",), 1, Uniform(0.05, 0.10)),
                ToolKind(("cat",), 1, Uniform(0.05, 0.10)),
                ToolKind(("grep",), 1, Uniform(0.08, 0.20)),
                ToolKind(("pytest",), 1, Uniform(2.0, 5.0)),
                ToolKind(("cat",), 1, Uniform(0.05, 0.10)),
                ToolKind(("patch",), 1, Uniform(0.10, 0.30)),
            ),
            prefix_tokens=0,
            prompt_tokens=(92, 469, 811, 1343, 1655, 2241, 2665, 2915),
            output_range=(7, 12),
        ),
    )
}
"""Recipes with published statistics."""
