"""What must hold of programs, whoever made them. In: programs. Out: nothing, or `TraceError`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from traces.lenient import TraceError
from traces.program import Program, Turn


def check(programs: Sequence[Program]) -> None:
    by_id: dict[str, Program] = {}
    prefixes: dict[str, int] = {}
    for program in programs:
        if program.id in by_id:
            raise TraceError(f"program {program.id!r}: id used twice; give each its own")
        by_id[program.id] = program
        _check_turns(program)
        _check_messages(program)
        if (prefix := program.prefix) is not None:
            agreed = prefixes.setdefault(prefix.id, prefix.tokens)
            if agreed != prefix.tokens:
                raise TraceError(
                    f"program {program.id!r}: prefix {prefix.id!r} has {prefix.tokens} tokens here "
                    f"and {agreed} in an earlier program; a prefix id stands for one text"
                )
    for program in programs:
        if program.fork is not None:
            _check_fork(program, by_id)


def _check_turns(program: Program) -> None:
    before: Turn | None = None
    if not program.turns:
        raise TraceError(f"program {program.id!r}: turns is empty; leave the program out")
    for number, turn in enumerate(program.turns):
        where = f"program {program.id!r}, turn {number}"
        if turn.prompt_tokens < 1 or turn.output_tokens < 1:
            raise TraceError(f"{where}: prompt_tokens and output_tokens must be 1 or more")
        most = min(turn.prompt_tokens - 1, before.context_tokens) if before else 0
        if not 0 <= turn.kept_tokens <= most:
            raise TraceError(
                f"{where}: kept_tokens is {turn.kept_tokens}, must be 0 to {most} (0 in a first "
                "turn, else less than the prompt and no more than the previous prompt and output)"
            )
        if not 0 <= turn.tool_gap_s < math.inf:
            raise TraceError(f"{where}: tool_gap_s is {turn.tool_gap_s}, must be 0 or more seconds")
        if program.prefix is not None and program.prefix.tokens > turn.prompt_tokens:
            raise TraceError(
                f"{where}: prompt_tokens is {turn.prompt_tokens}, less than the shared prefix of "
                f"{program.prefix.tokens}; shorten the prefix"
            )
        before = turn


def _check_messages(program: Program) -> None:
    if not program.messages and not program.prompt_messages:
        return
    counts = (0, *program.prompt_messages, len(program.messages))
    if len(counts) != len(program.turns) + 2 or any(a > b for a, b in pairwise(counts)):
        raise TraceError(
            f"program {program.id!r}: prompt_messages must hold for each turn how many of the "
            f"{len(program.messages)} messages are its prompt, never fewer than for the turn before"
        )


def _check_fork(program: Program, by_id: dict[str, Program]) -> None:
    fork = program.fork
    assert fork is not None  # noqa: S101 (for the type checker)
    where = f"program {program.id!r}, fork"
    parent = by_id.get(fork.program_id)
    if parent is None:
        raise TraceError(f"{where}: no program {fork.program_id!r} in this trace; add its parent")
    if not 0 <= fork.after_turn < len(parent.turns):
        raise TraceError(
            f"{where}: after_turn is {fork.after_turn}, its parent has {len(parent.turns)} turns"
        )
    joined = fork.joined_before_turn
    if joined is not None and not fork.after_turn < joined < len(parent.turns):
        raise TraceError(
            f"{where}: joined_before_turn is {joined}, must be after turn {fork.after_turn} and "
            f"below {len(parent.turns)}, or null"
        )
    if not 0 <= fork.delay_s < math.inf:
        raise TraceError(f"{where}: delay_s is {fork.delay_s}, must be 0 or more seconds")
    seen, above = {program.id}, parent
    while above.fork is not None:
        if above.id in seen:
            raise TraceError(f"{where}: it is its own ancestor; break the circle")
        seen.add(above.id)
        if (up := by_id.get(above.fork.program_id)) is None:
            return
        above = up
