"""Reduces workloads for smaller machines: fewer and shorter programs.

In and out: programs. Turns that keep the whole previous context still do, and prompts share the
same prefixes. Scaled gaps become synthesised, since they were never measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from servers.basics.errors import InvalidTrace
from traces.block_hashes import extend_prefixes
from traces.check import check
from traces.program import Fork, Program, Provenance, SharedPrefix, Turn

Scales = tuple[float, float, float]
"""Factors of prompt tokens, output tokens and gaps."""
MAX_VALUE = 10**9
"""Upper bound of each option."""


def cut(
    programs: Sequence[Program],
    *,
    jobs: int | None = None,
    max_turns: int | None = None,
    token_scale: float = 1.0,
    output_scale: float | None = None,
    gap_scale: float = 1.0,
) -> list[Program]:
    """Return the first `jobs` jobs with their sub-agents, and the first `max_turns` turns of each
    program.

    `token_scale` multiplies all lengths; `output_scale`, if given, replaces it for outputs. A
    sub-agent is removed if the turn that starts it is.
    """
    outputs = token_scale if output_scale is None else output_scale
    for name, minimum, value in (
        ("jobs", 1, jobs),
        ("max_turns", 1, max_turns),
        ("token_scale", 0, token_scale),
        ("output_scale", 0, outputs),
        ("gap_scale", 0, gap_scale),
    ):
        if value is not None and not minimum <= value <= MAX_VALUE:
            raise InvalidTrace(f"{name} is {value}; must be {minimum} to {MAX_VALUE:,}")
    kept: dict[str, Program] = {}
    roots = 0
    for program in parents_first(programs):
        if program.fork is None:
            roots += 1
            if jobs is not None and roots > jobs:
                continue
        fork = program.fork
        if fork is not None:
            parent = kept.get(fork.program_id)
            if parent is None or fork.after_turn >= len(parent.turns):
                continue
            fork = _fork(fork, len(parent.turns), gap_scale)
        kept[program.id] = _program(program, fork, max_turns, (token_scale, outputs, gap_scale))
    result = [kept[program.id] for program in programs if program.id in kept]
    check(result)
    return result


def parents_first(programs: Sequence[Program]) -> list[Program]:
    """Return the programs with each sub-agent after its parent."""
    by_id = {program.id: program for program in programs}

    def depth(program: Program) -> int:
        return 0 if program.fork is None else 1 + depth(by_id[program.fork.program_id])

    return sorted(programs, key=depth)


def _program(program: Program, fork: Fork | None, max_turns: int | None, scales: Scales) -> Program:
    tokens, outputs, gaps = scales
    prefix = program.prefix
    if prefix is not None:
        prefix = replace(prefix, tokens=_scaled(prefix.tokens, tokens))
    turns: list[Turn] = []
    for number, turn in enumerate(program.turns[:max_turns]):
        before = (program.turns[number - 1], turns[-1]) if turns else None
        turns.append(_turn(turn, before, prefix.tokens if prefix else 1, scales))
    if any(turn.prefixes for turn in turns):
        turns = list(extend_prefixes(turns))
    changes = [f"tokens x{tokens:g}"] * (tokens != 1) + [f"gaps x{gaps:g}"] * (gaps != 1)
    changes += [f"outputs x{outputs:g}"] * (outputs != tokens)
    if len(turns) < len(program.turns):
        changes.append(f"{len(turns)} of {len(program.turns)} turns")
    start_s = program.recorded_start_s
    return replace(
        program,
        turns=tuple(turns),
        prefix=prefix,
        fork=fork,
        recorded_start_s=None if start_s is None else start_s * gaps,
        source=", ".join(filter(None, [program.source, *changes])),
        prompt_messages=program.prompt_messages[:max_turns],
    )


def _turn(turn: Turn, before: tuple[Turn, Turn] | None, min_prompt: int, scales: Scales) -> Turn:
    """Return the scaled turn. `before` is the previous turn, as recorded and as scaled."""
    tokens, outputs, gaps = scales
    kept = 0
    if before is not None:
        whole = turn.kept_tokens == before[0].context_tokens
        max_kept = before[1].context_tokens
        kept = max_kept if whole else min(max_kept, math.floor(turn.kept_tokens * tokens))
    prefixes = _scaled_prefixes(turn.prefixes, tokens)
    min_prompt = max(min_prompt, prefixes[-1].tokens if prefixes else 1)
    return replace(
        turn,
        prompt_tokens=max(kept + _scaled(turn.new_tokens, tokens), min_prompt),
        output_tokens=_scaled(turn.output_tokens, outputs),
        kept_tokens=kept,
        tool_gap_s=turn.tool_gap_s * gaps,
        gap_provenance=turn.gap_provenance if gaps == 1 else Provenance.SYNTHESISED,
        prefixes=prefixes,
    )


def _scaled_prefixes(prefixes: tuple[SharedPrefix, ...], factor: float) -> tuple[SharedPrefix, ...]:
    """Scale the prefixes, and drop those that become empty."""
    scaled = [SharedPrefix(prefix.id, _scaled(prefix.tokens, factor)) for prefix in prefixes]
    begins = [0, *(prefix.tokens for prefix in scaled)]
    return tuple(p for p, begin in zip(scaled, begins, strict=False) if p.tokens > begin)


def _fork(fork: Fork, parent_turns: int, gaps: float) -> Fork:
    joined = fork.joined_before_turn
    return replace(
        fork,
        delay_s=fork.delay_s * gaps,
        joined_before_turn=joined if joined is not None and joined < parent_turns else None,
        delay_provenance=fork.delay_provenance if gaps == 1 else Provenance.SYNTHESISED,
    )


def _scaled(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor))
