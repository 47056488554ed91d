"""Workloads made to published statistics. In: a recipe, how many programs, an rng. Out: programs.

Seconds and tokens. Every gap is synthesised and says so. Draws are stratified (one from each of n
slices of equal probability, in random order), so that already a hundred programs have nearly the
recipe's moments; programs are therefore not fully independent of each other. What is published and
what is assumed stands with each recipe (`traces.synthesis.recipes`) and in
`docs/reference/trace-formats.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servers.errors import InvalidTrace
from traces.program import Program, Provenance, SharedPrefix, Turn
from traces.synthesis.distributions import stratified
from traces.synthesis.recipes import RECIPES, Recipe

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Reading = Literal["final-context", "sum"]
"""What "tokens per program" counts: the context of the last turn, or prompts and outputs of all."""

MAX_TURN_SCALE = 5
SHORTEST_TURN_TOKENS = 8
"""Added by each turn at least: one of output, the rest new prompt."""


def synthesize(
    recipe: str,
    programs: int,
    rng: np.random.Generator | int,
    *,
    turn_scale: int = 1,
    tokens: Reading = "final-context",
    scale: float | None = None,
    output_tokens: tuple[int, int] | None = None,
) -> list[Program]:
    """`turn_scale` repeats each program with lengths divided by it (Continuum v3, §6.3); `scale`
    multiplies tokens in place of the recipe's own factor; `output_tokens` (least, most) replaces
    the output lengths of `execution-note`."""
    chosen = _recipe(recipe)
    if programs < 1:
        raise InvalidTrace(f"programs is {programs}; ask for 1 or more")
    if not 1 <= turn_scale <= MAX_TURN_SCALE:
        raise InvalidTrace(f"turn scale is {turn_scale}; must be 1 to {MAX_TURN_SCALE}")
    if tokens not in ("final-context", "sum"):
        raise InvalidTrace(f"tokens is {tokens!r}; known are final-context and sum")
    if scale is not None and not 0 < scale <= 10:
        raise InvalidTrace(f"scale is {scale}; must be above 0 and at most 10")
    generator = np.random.default_rng(rng) if isinstance(rng, int) else rng
    if chosen.prompt_tokens is not None:
        if scale is not None or tokens != "final-context":
            raise InvalidTrace(f"{recipe} has fixed prompts; leave scale and tokens out")
        shape = _fixed(chosen, programs, generator, output_tokens or chosen.output_range)
    else:
        if output_tokens is not None:
            raise InvalidTrace(f"{recipe} draws its outputs; output_tokens is for execution-note")
        factor = chosen.scale if scale is None else scale
        shape = _drawn(chosen, programs, generator, tokens, factor)
    waits = _Waits(chosen, shape.turns, generator, join=turn_scale > 1)
    source = f"recipe {recipe}, {tokens} tokens"
    if scale is not None:
        source += f", scale {scale:g}"
    if turn_scale > 1:
        source += f", turns x{turn_scale}"
    return list(_programs(chosen, shape, waits, turn_scale, source))


def _recipe(name: str) -> Recipe:
    try:
        return RECIPES[name]
    except KeyError:
        raise InvalidTrace(f"no recipe {name!r}; known are {', '.join(RECIPES)}") from None


@dataclass(frozen=True, slots=True)
class _Shape:
    """Turns and lengths; `new` and `output` are flat, program after program."""

    turns: Ints
    new: Ints
    output: Ints


def _drawn(
    recipe: Recipe, programs: int, rng: np.random.Generator, reading: Reading, scale: float
) -> _Shape:
    """Split each program's token budget over its turns.

    A token that turn i adds (i from 0, N turns) costs 1 of a final context, N − i of a sum. Outputs
    are drawn, and scaled down where they would take more than half of what the first prompt leaves;
    tool outputs share the rest.
    """
    turns = np.clip(np.rint(recipe.turns.quantile(stratified(programs, rng))), 1, None)
    turns = turns.astype(np.int64)
    budget = recipe.tokens.quantile(stratified(programs, rng))
    budget = _rank_correlate(budget, turns, recipe.turns_tokens_correlation, rng) * scale
    if reading == "final-context" and scale <= recipe.scale:
        budget = np.minimum(budget, recipe.most_tokens)
    starts = np.concatenate(([0], np.cumsum(turns)[:-1]))
    owner = np.repeat(np.arange(programs), turns)
    place = np.arange(turns.sum()) - starts[owner]
    cost = np.ones(place.size) if reading == "final-context" else (turns[owner] - place) * 1.0
    opening_cost = cost[starts]

    floor = np.add.reduceat(cost, starts) * SHORTEST_TURN_TOKENS
    budget = np.maximum(budget - floor, 1.0)
    opening = recipe.first_prompt.quantile(stratified(programs, rng))
    opening = np.minimum(opening, 0.3 * budget / opening_cost)
    left = budget - opening * opening_cost
    output = recipe.output.quantile(stratified(place.size, rng))
    output *= np.minimum(1.0, 0.5 * left / np.add.reduceat(output * cost, starts))[owner]
    left = left - np.add.reduceat(output * cost, starts)
    weight = recipe.tool_output.quantile(stratified(place.size, rng))
    alone = turns == 1
    weight[starts] = alone  # The first prompt has its own length, unless nothing else is there.
    new = weight * (left / np.add.reduceat(weight * cost, starts))[owner]
    new[starts] += opening
    return _Shape(
        turns,
        np.floor(new).astype(np.int64) + SHORTEST_TURN_TOKENS - 1,
        np.floor(output).astype(np.int64) + 1,
    )


def _rank_correlate(
    values: Floats, with_: Ints, correlation: float, rng: np.random.Generator
) -> Floats:
    """Reorder values so that they rise with `with_`; their distribution stays exactly as it is."""
    size = values.size
    rank = np.argsort(np.argsort(with_ + rng.random(size))) / size
    mixed = correlation * rank + (1 - correlation) * rng.random(size)
    ordered = np.empty(size)
    ordered[np.argsort(mixed)] = np.sort(values)
    return ordered


def _fixed(
    recipe: Recipe, programs: int, rng: np.random.Generator, outputs: tuple[int, int]
) -> _Shape:
    prompts = np.array(recipe.prompt_tokens)
    least, most = outputs
    room = int(np.diff(prompts).min()) - 1
    if not 1 <= least <= most <= room:
        raise InvalidTrace(f"output_tokens is {outputs}; must be 1 to {room}, the smaller first")
    output = least + np.floor(stratified(programs * prompts.size, rng) * (most - least + 1))
    output = output.astype(np.int64).reshape(programs, -1)
    new = np.tile(prompts, (programs, 1))
    new[:, 1:] -= prompts[:-1] + output[:, :-1]
    turns = np.full(programs, prompts.size, dtype=np.int64)
    return _Shape(turns, new.ravel(), output.ravel())


class _Waits:
    """Tool calls between the turns, flat: N − 1 for each program, and one more to join copies."""

    def __init__(
        self, recipe: Recipe, turns: Ints, rng: np.random.Generator, *, join: bool
    ) -> None:
        self.turns = turns
        self.calls, self.gaps_s = recipe.waits(turns - 1, rng)
        self.joins, self.join_gaps_s = (
            recipe.waits(np.ones_like(turns), rng) if join else (np.zeros(0, np.int64), np.zeros(0))
        )


def _programs(
    recipe: Recipe, shape: _Shape, waits: _Waits, turn_scale: int, source: str
) -> Iterator[Program]:
    width = max(4, len(str(shape.turns.size - 1)))
    tools = [call.tools for call in recipe.calls]
    first = call = 0
    prefix_tokens = recipe.prefix_tokens // turn_scale
    for number, count in enumerate(shape.turns.tolist()):
        new = shape.new[first : first + count]
        output = shape.output[first : first + count]
        between = [
            (tools[c], s)
            for c, s in zip(
                waits.calls[call : call + count - 1].tolist(),
                waits.gaps_s[call : call + count - 1].round(4).tolist(),
                strict=True,
            )
        ]
        if turn_scale > 1:
            new = np.tile(np.maximum(new // turn_scale, 1), turn_scale)
            output = np.tile(np.maximum(output // turn_scale, 1), turn_scale)
            join = (tools[int(waits.joins[number])], round(float(waits.join_gaps_s[number]), 4))
            between = ([*between, join] * turn_scale)[:-1]
        turns = _turns(new.tolist(), output.tolist(), between)
        shared = min(prefix_tokens, turns[0].prompt_tokens - 1)
        prefix = SharedPrefix(f"{recipe.name}:system:{shared}", shared) if shared else None
        yield Program(f"{recipe.name}-{number:0{width}}", turns, prefix, source=source)
        first, call = first + count, call + count - 1


def _turns(
    new: list[int], output: list[int], between: list[tuple[tuple[str, ...], float]]
) -> tuple[Turn, ...]:
    turns = []
    context = 0
    for added, out, (tools, gap_s) in zip(new, output, [*between, ((), 0.0)], strict=True):
        prompt = context + added
        turns.append(Turn(prompt, out, context, tools, None, gap_s, Provenance.SYNTHESISED))
        context = prompt + out
    return tuple(turns)
