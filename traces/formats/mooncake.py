"""Mooncake's request traces, with the extensions of AIPerf and Dynamo for sessions.

In: a request per line, `{timestamp, input_length, output_length, hash_ids}`, with times in
milliseconds and hashes of blocks of 512 tokens; with sessions also `session_id` and `delay`, the
pause after the previous response. Out: a program per session, or one of a single turn per request
without a session. Later requests of a session have the whole prompt or only its new part (delta).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from math import ceil

from servers.basics.errors import TraceRejected
from servers.basics.text import identifier
from traces.block_hashes import Hashes, common_blocks, kept_tokens, share_blocks
from traces.formats.about import CALL_END, LENGTHS, MEASURED, SINGLE, About
from traces.formats.shared.rows import first_row, in_seconds, lengths, rows
from traces.formats.shared.timed_calls import estimated_api_s
from traces.lenient import MAX_GAP_S, MAX_TOKENS, Repairs
from traces.program import Program, Provenance, Turn

ABOUT = About(
    name="mooncake",
    order=10,
    keys=(("input_length", "output_length", "timestamp"),),
    holds="requests of a service, with block hashes",
    tokens="recorded",
    tool_times="unstated, else inferred",
    repeats=MEASURED,
    starts=True,
    sub_agents=False,
    accuracy=f"without `delay` {CALL_END}; without hashes {LENGTHS}",
    without=SINGLE,
    title="Mooncake",
    rules=(
        "Times in ms. `hash_ids` are valid in the whole file, in blocks of 512 tokens, or of "
        "the largest power of two that fits. Whether later rows of a session are whole "
        "prompts or new parts is **inferred** and reported. The gap is `delay` "
        "(**unstated**), otherwise **inferred**"
    ),
)

BLOCK_TOKENS = 512
SINGLE_TURNS = (
    "a request without a session: a program of one turn, which shares prefixes but has no tool gap"
)


@dataclass(slots=True)
class Request:
    input: int
    output: int
    hashes: list[int | str] | None
    start_s: float | None
    delay_s: float | None


def sniff(first_bytes: bytes) -> bool:
    row = first_row(first_bytes)
    if "chat_id" in row or "dependencies" in row or "wait_for" in row:
        return False
    return {"input_length", "output_length"} <= row.keys() and bool(
        {"timestamp", "hash_ids", "session_id"} & row.keys()
    )


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    sessions: dict[str, list[Request]] = {}
    for number, row in enumerate(rows(data, repairs)):
        found = lengths(row.get("input_length"), row.get("output_length"), repairs)
        if found is None:
            continue
        request = Request(
            *found,
            usable_hashes(row.get("hash_ids")),
            in_seconds(row.get("timestamp"), 1e3),
            in_seconds(row.get("delay"), 1e3),
        )
        session = identifier(row.get("session_id"))
        if not session:
            repairs.add(SINGLE_TURNS)
            session = f"{name}-{number}"
        sessions.setdefault(session, []).append(request)
    if not sessions:
        raise TraceRejected("no request with prompt tokens")
    block = block_tokens((r for requests in sessions.values() for r in requests), repairs)
    delta = _is_delta(list(sessions.values()), repairs)
    programs = [_program(id, requests, delta, repairs) for id, requests in sessions.items()]
    if delta:
        return _share_first_prompts(programs, sessions, block)
    shared = share_blocks(programs, {id: _hashes(r) for id, r in sessions.items()}, block)
    return [_append_only(program, sessions[program.id], repairs) for program in shared]


def block_tokens(requests: Iterable[Request], repairs: Repairs) -> int:
    """Return the block size: 512 unless the numbers of hashes only fit another one."""
    low, high = 1, MAX_TOKENS
    for request in requests:
        if count := len(request.hashes or ()):
            low = max(low, ceil(request.input / count))
            if count > 1:
                high = min(high, (request.input - 1) // (count - 1))
    if low <= BLOCK_TOKENS <= high:
        return BLOCK_TOKENS
    if low > high:
        repairs.add("hash_ids do not fit any block size: 512 tokens assumed")
        return BLOCK_TOKENS
    powers = [1 << n for n in range(14) if low <= 1 << n <= high]
    block = powers[-1] if powers else low
    repairs.add(f"the block size is not 512: inferred to be {block} tokens")
    return block


def usable_hashes(value: object) -> list[int | str] | None:
    """Return recorded block hashes up to the first invalid one; None if there are none."""
    if not isinstance(value, list):
        return None
    return list(takewhile(lambda each: isinstance(each, int | str), value))


def _is_delta(sessions: Sequence[Sequence[Request]], repairs: Repairs) -> bool:
    """Return whether later requests of a session contain only the new part of the prompt. They
    contain the whole prompt if it begins with the same block as the first one, or if there are no
    hashes and all prompts grow by the output."""
    votes: Counter[bool] = Counter()
    for first, *others in sessions:
        for before, request in zip([first, *others], others, strict=False):
            if first.hashes and request.hashes:
                votes[common_blocks(first.hashes, request.hashes) == 0] += 1
            else:
                votes[request.input < before.input + before.output] += 1
    if not votes:
        return False
    delta = votes[True] > votes[False]
    kind = "only the new part of their prompts" if delta else "their whole prompts"
    repairs.add(f"the requests of a session are taken to have {kind} (inferred)")
    return delta


def _program(id: str, requests: Sequence[Request], delta: bool, repairs: Repairs) -> Program:
    turns: list[Turn] = []
    context = 0
    for i, request in enumerate(requests):
        prompt = request.input + (context if delta else 0)
        if prompt + request.output > MAX_TOKENS:
            raise TraceRejected(
                f"session {id}: its context grows to {prompt + request.output:,} tokens, above the "
                f"limit of {MAX_TOKENS:,}"
            )
        context = prompt + request.output
        gap_s, provenance = _gap(request, requests[i + 1 : i + 2], prompt, repairs)
        turns.append(
            Turn(prompt, request.output, tool_gap_s=round(gap_s, 3), gap_provenance=provenance)
        )
    return Program(id, tuple(turns), recorded_start_s=requests[0].start_s)


def _gap(
    request: Request, following: Sequence[Request], prompt: int, repairs: Repairs
) -> tuple[float, Provenance]:
    if not following:
        return 0.0, Provenance.UNSTATED
    if following[0].delay_s is not None:
        return min(following[0].delay_s, MAX_GAP_S), Provenance.UNSTATED
    start_s, next_s = request.start_s, following[0].start_s
    if start_s is None or next_s is None:
        repairs.add("a request without delay or timestamp: the gap before it is set to 0")
        return 0.0, Provenance.UNSTATED
    repairs.add("a request without delay: the previous generation is estimated, its gap inferred")
    gap_s = next_s - start_s - estimated_api_s(prompt, request.output)
    return min(max(0.0, gap_s), MAX_GAP_S), Provenance.INFERRED


def _hashes(requests: Sequence[Request]) -> list[Hashes]:
    """Return the hashes of whole prompts. A prompt without hashes shares nothing."""
    return [request.hashes or () for request in requests]


def _append_only(program: Program, requests: Sequence[Request], repairs: Repairs) -> Program:
    """Infer the kept tokens of prompts without hashes: growing prompts repeat the last one."""
    turns = list(program.turns)
    for i, (before, request) in enumerate(pairwise(requests), 1):
        if before.hashes is None and request.hashes is None:
            repairs.add("a request without hash_ids: assumed to extend the previous one if it is "
                        "longer")  # fmt: skip
            kept = kept_tokens(before.input, before.output, request.input, None, 1)
            turns[i] = replace(turns[i], kept_tokens=kept)
    return replace(program, turns=tuple(turns))


def _share_first_prompts(
    programs: Sequence[Program], sessions: Mapping[str, Sequence[Request]], block: int
) -> list[Program]:
    """Return programs in which each prompt repeats the whole context before it, and the first ones
    share blocks with other sessions."""
    first_turns = [replace(program, turns=program.turns[:1]) for program in programs]
    first_hashes = {id: [requests[0].hashes or ()] for id, requests in sessions.items()}
    result = []
    for shared, program in zip(
        share_blocks(first_turns, first_hashes, block), programs, strict=True
    ):
        prefixes = shared.turns[0].prefixes
        kept = [0, *(turn.context_tokens for turn in program.turns)]
        turns = [
            replace(turn, kept_tokens=context, prefixes=prefixes)
            for context, turn in zip(kept, program.turns, strict=False)
        ]
        result.append(replace(program, turns=tuple(turns)))
    return result
