"""Synthesises workloads from recipes. In: a recipe, the number of jobs, an rng. Out: programs.

Times are in seconds, lengths in tokens; the provenance of all gaps is synthesised. Draws are
stratified (one from each of n slices of equal probability, in random order), so that a hundred
programs already have nearly the recipe's moments. Programs are therefore not fully independent of
each other. `traces.synthesis.recipes` and `docs/reference/workloads.md` list which statistics are
published and which are assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servers.basics.errors import InvalidTrace
from traces.program import Program, Provenance, SharedPrefix, Turn
from traces.synthesis.distributions import stratified
from traces.synthesis.known import program_draws
from traces.synthesis.recipes import PUBLISHED, SOURCE, Recipe, TokenCount

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_TURN_SCALE = 5
MIN_TURN_TOKENS = 8
"""Minimum number of tokens that a turn adds: one output token, the others in the prompt."""


def synthesize(
    recipe: str,
    programs: int,
    rng: np.random.Generator | int,
    *,
    turn_scale: int = 1,
    tokens: TokenCount | None = None,
    scale: float | None = None,
    output_tokens: tuple[int, int] | None = None,
) -> list[Program]:
    """Return `programs` jobs of a recipe, each followed by its sub-agents.

    `recipe` is one of RECIPES, or the path of a fitted recipe (.toml). `turn_scale` repeats each
    program's turns with lengths divided by it (Continuum v3, §6.3); `tokens` replaces what tokens
    per program means in the recipe, and `scale` the factor on all tokens; `output_tokens` (minimum,
    maximum) replaces the output lengths of `execution-note`. Raises InvalidTrace."""
    if programs < 1:
        raise InvalidTrace(f"programs is {programs}; must be at least 1")
    if not 1 <= turn_scale <= MAX_TURN_SCALE:
        raise InvalidTrace(f"turn scale is {turn_scale}; must be 1 to {MAX_TURN_SCALE}")
    if tokens not in ("final-context", "sum", None):
        raise InvalidTrace(f"tokens is {tokens!r}; known are final-context and sum")
    if scale is not None and not 0 < scale <= 10:
        raise InvalidTrace(f"scale is {scale}; must be above 0 and at most 10")
    generator = np.random.default_rng(rng) if isinstance(rng, int) else rng
    if recipe in PUBLISHED:
        chosen = PUBLISHED[recipe]
        return _synthesize(chosen, programs, generator, turn_scale, tokens, scale, output_tokens)
    draws = program_draws(recipe)
    if turn_scale > 1 or tokens is not None or scale is not None or output_tokens is not None:
        raise InvalidTrace(
            f"{recipe} is fitted to real programs; remove the options other than the number of "
            "programs and the seed, and use bench traces convert to change lengths"
        )
    return draws.draw(programs, generator)


def _synthesize(
    chosen: Recipe,
    programs: int,
    generator: np.random.Generator,
    turn_scale: int,
    tokens: TokenCount | None,
    scale: float | None,
    output_tokens: tuple[int, int] | None,
) -> list[Program]:
    if chosen.prompt_tokens is not None:
        if scale is not None or tokens is not None:
            raise InvalidTrace(f"{chosen.name} has fixed prompts; remove scale and tokens")
        shape = _fixed(chosen, programs, generator, output_tokens or chosen.output_range)
    else:
        if output_tokens is not None:
            raise InvalidTrace(
                f"{chosen.name} draws its outputs; output_tokens is for execution-note"
            )
        factor = chosen.scale if scale is None else scale
        shape = _drawn(chosen, programs, generator, tokens or chosen.reading, factor)
    calls = _Calls(chosen, shape.turns, generator, join=turn_scale > 1)
    source = f"{SOURCE} {chosen.name}, {tokens or chosen.reading} tokens"
    if scale is not None:
        source += f", scale {scale:g}"
    if turn_scale > 1:
        source += f", turns x{turn_scale}"
    return list(_programs(chosen, shape, calls, turn_scale, source))


@dataclass(frozen=True, slots=True)
class _Shape:
    """Numbers of turns, and lengths of turns, concatenated over the programs."""

    turns: Ints
    """Turns per program."""
    new: Ints
    """New prompt tokens per turn."""
    output: Ints


def _drawn(
    recipe: Recipe, programs: int, rng: np.random.Generator, count: TokenCount, scale: float
) -> _Shape:
    """Split each program's token budget over its turns.

    A token that turn i adds (i from 0, N turns) counts once in the final context and N − i times in
    the sum. Outputs are drawn, and scaled down if they would take more than half of the budget that
    the first prompt leaves; the rest is split over the tool outputs.
    """
    turns = np.clip(np.rint(recipe.turns.quantile(stratified(programs, rng))), 1, None)
    turns = turns.astype(np.int64)
    budget = recipe.tokens.quantile(stratified(programs, rng))
    budget = _rank_correlate(budget, turns, recipe.turns_tokens_correlation, rng) * scale
    if count == "final-context" and scale <= recipe.scale:
        budget = np.minimum(budget, recipe.max_tokens)
    starts = np.concatenate(([0], np.cumsum(turns)[:-1]))
    owner = np.repeat(np.arange(programs), turns)
    index = np.arange(turns.sum()) - starts[owner]
    cost = np.ones(index.size) if count == "final-context" else (turns[owner] - index) * 1.0
    opening_cost = cost[starts]

    floor = np.add.reduceat(cost, starts) * MIN_TURN_TOKENS
    budget = np.maximum(budget - floor, 1.0)
    opening = recipe.first_prompt.quantile(stratified(programs, rng))
    opening = np.minimum(opening, 0.3 * budget / opening_cost)
    rest = budget - opening * opening_cost
    output = recipe.output.quantile(stratified(index.size, rng))
    output *= np.minimum(1.0, 0.5 * rest / np.add.reduceat(output * cost, starts))[owner]
    rest = rest - np.add.reduceat(output * cost, starts)
    weight = recipe.tool_output.quantile(stratified(index.size, rng))
    # The rest of a program with a single turn is added to its first prompt.
    weight[starts] = turns == 1
    new = weight * (rest / np.add.reduceat(weight * cost, starts))[owner]
    new[starts] += opening
    return _Shape(
        turns,
        np.floor(new).astype(np.int64) + MIN_TURN_TOKENS - 1,
        np.floor(output).astype(np.int64) + 1,
    )


def _rank_correlate(
    values: Floats, with_: Ints, correlation: float, rng: np.random.Generator
) -> Floats:
    """Reorder values so that they correlate with `with_`, without changing their distribution."""
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
    low, high = outputs
    max_output = int(np.diff(prompts).min()) - 1
    if not 1 <= low <= high <= max_output:
        raise InvalidTrace(f"output_tokens is {low} to {high}; must be within 1 to {max_output}")
    output = low + np.floor(stratified(programs * prompts.size, rng) * (high - low + 1))
    output = output.astype(np.int64).reshape(programs, -1)
    new = np.tile(prompts, (programs, 1))
    new[:, 1:] -= prompts[:-1] + output[:, :-1]
    turns = np.full(programs, prompts.size, dtype=np.int64)
    return _Shape(turns, new.ravel(), output.ravel())


class _Calls:
    """The tool calls between turns, concatenated over the programs: N − 1 per program of N turns,
    and one more per program to join repetitions."""

    def __init__(
        self, recipe: Recipe, turns: Ints, rng: np.random.Generator, *, join: bool
    ) -> None:
        self.kinds, self.gaps_s = recipe.draw_calls(turns - 1, rng)
        if join:
            self.join_kinds, self.join_gaps_s = recipe.draw_calls(np.ones_like(turns), rng)


def _programs(
    recipe: Recipe, shape: _Shape, calls: _Calls, turn_scale: int, source: str
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
                calls.kinds[call : call + count - 1].tolist(),
                calls.gaps_s[call : call + count - 1].round(4).tolist(),
                strict=True,
            )
        ]
        if turn_scale > 1:
            new = np.tile(np.maximum(new // turn_scale, 1), turn_scale)
            output = np.tile(np.maximum(output // turn_scale, 1), turn_scale)
            join_gap_s = round(float(calls.join_gaps_s[number]), 4)
            join = (tools[int(calls.join_kinds[number])], join_gap_s)
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
