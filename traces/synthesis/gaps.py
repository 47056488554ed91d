"""Draws tool gaps from a recipe, for programs whose tool times are not recorded.

In: the name of a recipe; a program's id and the tools of each turn. Out: seconds. A turn's gap is
drawn from the recipe's calls of the turn's first tool that the recipe knows, or from all calls if
it knows none. A program's gaps depend only on its id and tools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from traces.assumptions import GapSource
from traces.synthesis.draw_turns import at
from traces.synthesis.fitted import NO_TOOL
from traces.synthesis.known import fitted_recipe
from traces.synthesis.recipes import PUBLISHED

Floats = NDArray[np.float64]
Calls = list[tuple[float, Callable[[Floats], Floats]]]
"""Weight and quantile function of the gaps after each kind of call."""
ALL = ""
"""The key for all calls."""


def gap_source(recipe: str) -> GapSource:
    """Return the gaps of a recipe, by its name or the path of its file. Raises InvalidTrace."""
    by_tool: dict[str, Calls] = {}
    for tools, weight, quantile in _calls(recipe):
        for name in (*tools, ALL):
            by_tool.setdefault(name, []).append((weight, quantile))

    def draw(program_id: str, tools: Sequence[tuple[str, ...]]) -> list[float]:
        digest = hashlib.sha256(program_id.encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        return [_gap_s(by_tool, names, rng) for names in tools]

    return draw


def contents(recipe: str) -> str:
    """Return the contents of a recipe that decide its gaps."""
    return recipe if recipe in PUBLISHED else fitted_recipe(recipe).model_dump_json()


def _calls(recipe: str) -> Iterator[tuple[tuple[str, ...], float, Callable[[Floats], Floats]]]:
    if (published := PUBLISHED.get(recipe)) is not None:
        for call in published.calls:
            yield call.tools, call.weight, call.gap_s.quantile
        return
    for kind in fitted_recipe(recipe).jobs.values():
        for name, tool in kind.tools.items():
            calls = tool.first + sum(other.next.get(name, 0) for other in kind.tools.values())
            if name != NO_TOOL and calls:
                yield (name,), calls, partial(at, tool.gap_s)


def _gap_s(by_tool: dict[str, Calls], tools: tuple[str, ...], rng: np.random.Generator) -> float:
    calls = by_tool[next((name for name in tools if name in by_tool and name), ALL)]
    weights = np.array([weight for weight, _ in calls])
    _, quantile = calls[int(rng.choice(len(calls), p=weights / weights.sum()))]
    return round(float(quantile(rng.uniform(1e-9, 1 - 1e-9, 1))[0]), 3)
