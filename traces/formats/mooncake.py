"""Mooncake's request traces, with the extensions of AIPerf and Dynamo for sessions.

In: a request per line, `{timestamp, input_length, output_length, hash_ids}`, with times in
milliseconds and hashes of blocks of 512 tokens; with sessions also `session_id` and `delay`, the
pause after the previous response. Out: a program per session, or one of a single turn per request
without a session. Later requests of a session have the whole prompt or only its new part (delta).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from math import ceil

from servers.basics.errors import TraceRejected
from servers.basics.text import identifier
from traces.block_hashes import common_blocks
from traces.formats.about import CALL_END, LENGTHS, MEASURED, SINGLE, About
from traces.formats.shared.calls import Call
from traces.formats.shared.rows import first_row, in_seconds, lengths, rows
from traces.formats.shared.timed_calls import (
    TimedAgent,
    estimated_api_s,
    make_programs,
    share_hashes,
)
from traces.lenient import MAX_TOKENS, Repairs
from traces.program import Program, Provenance

ABOUT = About(
    name="mooncake",
    order=10,
    keys=(("input_length", "output_length", "timestamp"),),
    holds="requests of a service, with block hashes",
    tool_times="unstated, else inferred",
    repeats=MEASURED,
    accuracy=f"without `delay` {CALL_END}; without hashes {LENGTHS}",
    without=SINGLE,
    title="Mooncake",
    rules=(
        "Blocks have 512 tokens, or the largest power of two that fits. Whether later rows of a "
        "session are whole prompts or new parts is **inferred**. The gap is `delay`, otherwise "
        "**inferred**"
    ),
)

BLOCK_TOKENS = 512
SINGLE_TURNS = (
    "a request without a session: a program of one turn, which shares prefixes but has no tool gap"
)


def sniff(first_bytes: bytes) -> bool:
    row = first_row(first_bytes)
    if "chat_id" in row or "dependencies" in row or "wait_for" in row:
        return False
    return {"input_length", "output_length"} <= row.keys() and bool(
        {"timestamp", "hash_ids", "session_id"} & row.keys()
    )


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    agents: dict[str, TimedAgent] = {}
    for number, row in enumerate(rows(data, repairs)):
        found = lengths(row.get("input_length"), row.get("output_length"), repairs)
        if found is None:
            continue
        session = identifier(row.get("session_id"))
        if not session:
            repairs.add(SINGLE_TURNS)
            session = f"{name}-{number}"
        calls = agents.setdefault(session, TimedAgent(session, [])).calls
        delay_s = in_seconds(row.get("delay"), 1e3)
        if calls and delay_s is not None:
            calls[-1].gap = delay_s, Provenance.UNSTATED
        start_s, hashes = in_seconds(row.get("timestamp"), 1e3), usable_hashes(row.get("hash_ids"))
        calls.append(Call(*found, start_s, hashes=hashes))
    if not agents:
        raise TraceRejected("no request with prompt tokens")
    block = block_tokens((call for agent in agents.values() for call in agent.calls), repairs)
    delta = _is_delta([agent.calls for agent in agents.values()], repairs)
    for agent in agents.values():
        _complete(agent, delta, repairs)
    programs = share_hashes(make_programs(agents, repairs), list(agents.values()), block)
    return list(map(_with_first_prefixes, programs)) if delta else programs


def block_tokens(requests: Iterable[Call], repairs: Repairs) -> int:
    """Return the block size: 512 unless the numbers of hashes only fit another one."""
    low, high = 1, MAX_TOKENS
    for request in requests:
        if count := len(request.hashes or ()):
            low = max(low, ceil(request.prompt / count))
            if count > 1:
                high = min(high, (request.prompt - 1) // (count - 1))
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


def _is_delta(sessions: Sequence[Sequence[Call]], repairs: Repairs) -> bool:
    """Return whether later requests of a session contain only the new part of the prompt. They
    contain the whole prompt if it begins with the same block as the first one, or if there are no
    hashes and all prompts grow by the output."""
    votes: Counter[bool] = Counter()
    for first, *others in sessions:
        for before, request in zip([first, *others], others, strict=False):
            if first.hashes and request.hashes:
                votes[common_blocks(first.hashes, request.hashes) == 0] += 1
            else:
                votes[request.prompt < before.prompt + before.output] += 1
    if not votes:
        return False
    delta = votes[True] > votes[False]
    kind = "only the new part of their prompts" if delta else "their whole prompts"
    repairs.add(f"the requests of a session are taken to have {kind} (inferred)")
    return delta


def _complete(agent: TimedAgent, delta: bool, repairs: Repairs) -> None:
    """Set the whole prompts, what they keep, and the gaps of an agent's calls."""
    context = 0
    for before, call in zip([None, *agent.calls], agent.calls, strict=False):
        if before is not None and delta:
            call.prompt, call.kept, call.hashes = call.prompt + context, context, None
        elif before is not None and call.hashes is None:
            repairs.add("a request without hash_ids: assumed to extend the previous one if it is "
                        "longer")  # fmt: skip
        context = call.prompt + call.output
        if context > MAX_TOKENS:
            raise TraceRejected(
                f"session {agent.id}: its context grows to {context:,} tokens, above the "
                f"limit of {MAX_TOKENS:,}"
            )
        if before is None or before.gap is not None:
            continue
        if before.start_s is not None and call.start_s is not None:
            repairs.add(
                "a request without delay: the previous generation is estimated, its gap inferred"
            )
            api_s = estimated_api_s(before.prompt, before.output)
            before.gap = call.start_s - before.start_s - api_s, Provenance.INFERRED
        else:
            repairs.add("a request without delay or timestamp: the gap before it is set to 0")
            before.gap = 0.0, Provenance.UNSTATED


def _with_first_prefixes(program: Program) -> Program:
    """Return the program with the prefixes of the first prompt in all prompts."""
    prefixes = program.turns[0].prefixes
    turns = tuple(replace(turn, prefixes=prefixes) for turn in program.turns)
    return replace(program, turns=turns)
