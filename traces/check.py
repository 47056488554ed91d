"""Validates programs from any loader or recipe. Raises InvalidTrace."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from itertools import pairwise

from servers.basics.errors import InvalidTrace
from servers.basics.text import has_control
from traces.block_hashes import truncated
from traces.lenient import MAX_GAP_S, MAX_START_S, MAX_TOKENS
from traces.program import Program, SharedPrefix, Turn
from traces.stored import StoredTurns


def check(programs: Sequence[Program]) -> None:
    by_id: dict[str, Program] = {}
    prefixes: dict[str, int] = {}
    for program in programs:
        if program.id in by_id:
            raise InvalidTrace(f"program {program.id!r}: id used twice; make ids unique")
        if not program.id or has_control(program.id):
            raise InvalidTrace(f"program {program.id!r}: an id is text without control characters")
        by_id[program.id] = program
        if (start_s := program.recorded_start_s) is not None:
            where = f"program {program.id!r}: recorded_start_s"
            _check_seconds(where, start_s, MAX_START_S)
        _check_turns(program)
        _check_messages(program)
        if (prefix := program.prefix) is not None:
            agreed = prefixes.setdefault(prefix.id, prefix.tokens)
            if agreed != prefix.tokens:
                raise InvalidTrace(
                    f"program {program.id!r}: prefix {prefix.id!r} has {prefix.tokens} tokens here "
                    f"and {agreed} in an earlier program; use different ids for different texts"
                )
    for program in programs:
        if program.fork is not None:
            _check_fork(program, by_id)
    _check_ancestors(programs, by_id)
    check_prefixes(programs, {})


def _check_turns(program: Program) -> None:
    if isinstance(program.turns, StoredTurns):
        return  # `read_stored` has checked them
    before: Turn | None = None
    if not program.turns:
        raise InvalidTrace(f"program {program.id!r}: turns is empty; remove the program")
    for number, turn in enumerate(program.turns):
        where = f"program {program.id!r}, turn {number}"
        for field in ("prompt_tokens", "output_tokens"):
            if not 1 <= (tokens := getattr(turn, field)) <= MAX_TOKENS:
                raise InvalidTrace(f"{where}: {field} is {tokens}, must be 1 to {MAX_TOKENS:,}")
        max_kept = min(turn.prompt_tokens - 1, before.context_tokens) if before else 0
        if not 0 <= turn.kept_tokens <= max_kept:
            raise InvalidTrace(
                f"{where}: kept_tokens is {turn.kept_tokens}, must be 0 to {max_kept} (0 in a "
                "first turn, else less than the prompt and at most the previous prompt and output)"
            )
        _check_seconds(f"{where}: tool_gap_s", turn.tool_gap_s, MAX_GAP_S)
        if program.prefix is not None and program.prefix.tokens > turn.prompt_tokens:
            raise InvalidTrace(
                f"{where}: prompt_tokens is {turn.prompt_tokens}, less than the shared prefix of "
                f"{program.prefix.tokens}; shorten the prefix"
            )
        before = turn


PrefixBegin = tuple[str | None, int]
"""The id of the preceding prefix, and the token at which this one begins."""


def check_prefixes(programs: Sequence[Program], begins: MutableMapping[str, PrefixBegin]) -> None:
    """Check that each prefix begins at the same place of the prefix tree in all programs. `begins`
    has the places of earlier prefixes and is extended by these programs'."""
    for program in programs:
        _check_path(program, begins)


def _check_path(program: Program, begins: MutableMapping[str, PrefixBegin]) -> None:
    if isinstance(program.turns, StoredTurns):  # no turn has its own prefixes
        if program.prefix is not None:
            _check_begin(program.prefix, (None, 0), begins, f"program {program.id!r}")
        return
    if program.prefix is None and not any(turn.prefixes for turn in program.turns):
        return
    before: tuple[Turn, tuple[SharedPrefix, ...]] | None = None
    for number, turn in enumerate(program.turns):
        where = f"program {program.id!r}, turn {number}"
        path = turn.prefixes
        if number == 0 and program.prefix is not None:
            if path:
                raise InvalidTrace(f"{where}: has prefixes and so has its program; remove one")
            path = (program.prefix,)
        begin: PrefixBegin = None, 0
        for prefix in path:
            if not begin[1] < prefix.tokens <= turn.prompt_tokens:
                raise InvalidTrace(
                    f"{where}: prefix {prefix.id!r} ends at token {prefix.tokens}, must end after "
                    f"token {begin[1]}, where it begins, and within the prompt of "
                    f"{turn.prompt_tokens} tokens"
                )
            _check_begin(prefix, begin, begins, where)
            begin = prefix.id, prefix.tokens
        if before is not None and path:
            repeated = min(turn.kept_tokens, before[0].prompt_tokens, begin[1])
            if truncated(path, repeated) != truncated(before[1], repeated):
                raise InvalidTrace(
                    f"{where}: keeps {turn.kept_tokens} tokens of the previous turn, so both must "
                    f"have the same prefixes for the first {repeated} tokens"
                )
        before = turn, path


def _check_begin(
    prefix: SharedPrefix,
    begin: PrefixBegin,
    begins: MutableMapping[str, PrefixBegin],
    where: str,
) -> None:
    if begins.setdefault(prefix.id, begin) != begin:
        raise InvalidTrace(
            f"{where}: prefix {prefix.id!r} begins at token {begin[1]} after prefix {begin[0]!r}, "
            f"and elsewhere at token {begins[prefix.id][1]} after {begins[prefix.id][0]!r}; give "
            "it another id here"
        )


def _check_messages(program: Program) -> None:
    if not program.messages and not program.prompt_messages:
        return
    counts = (0, *program.prompt_messages, len(program.messages))
    if len(counts) != len(program.turns) + 2 or any(a > b for a, b in pairwise(counts)):
        raise InvalidTrace(
            f"program {program.id!r}: prompt_messages must have for each turn how many of the "
            f"{len(program.messages)} messages are its prompt, at least as many as the turn before"
        )


def _check_fork(program: Program, by_id: dict[str, Program]) -> None:
    fork = program.fork
    assert fork is not None  # noqa: S101 (for the type checker)
    where = f"program {program.id!r}, fork"
    parent = by_id.get(fork.program_id)
    if parent is None:
        raise InvalidTrace(
            f"{where}: the parent program {fork.program_id!r} is not in this trace; add it"
        )
    if not 0 <= fork.after_turn < len(parent.turns):
        raise InvalidTrace(
            f"{where}: after_turn is {fork.after_turn}, its parent has {len(parent.turns)} turns"
        )
    joined = fork.joined_before_turn
    if joined is not None and not fork.after_turn < joined < len(parent.turns):
        raise InvalidTrace(
            f"{where}: joined_before_turn is {joined}, must be after turn {fork.after_turn} and "
            f"below {len(parent.turns)}, or null"
        )
    _check_seconds(f"{where}: delay_s", fork.delay_s, MAX_GAP_S)


def _check_seconds(field: str, value_s: float, limit_s: float) -> None:
    if not 0 <= value_s <= limit_s:
        raise InvalidTrace(f"{field} is {value_s}, must be 0 to {limit_s:,.0f} seconds")


def _check_ancestors(programs: Sequence[Program], by_id: dict[str, Program]) -> None:
    """Check that no program is its own ancestor. Visits each program once."""
    checked: set[str] = set()
    for program in programs:
        path: dict[str, None] = {}
        ancestor: Program | None = program
        while ancestor is not None and ancestor.id not in checked:
            if ancestor.id in path:
                raise InvalidTrace(
                    f"program {ancestor.id!r}, fork: it is its own ancestor; remove the cycle"
                )
            path[ancestor.id] = None
            ancestor = by_id[ancestor.fork.program_id] if ancestor.fork is not None else None
        checked.update(path)
