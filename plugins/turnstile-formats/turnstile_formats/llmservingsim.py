"""LLMServingSim's workloads: single requests, and agentic sessions of several requests.

In: JSON Lines of `{input_toks, output_toks, arrival_time_ns, [input_tok_ids]}` and of `{session_id,
arrival_time_ns, sub_requests[{input_toks, output_toks, tool_duration_ns, [input_tok_ids]}]}`, with
times in nanoseconds. Out: a program per line. A sub-request has its whole prompt, and the next
sub-request starts when the tool has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier
from traces.block_hashes import Hashes, kept_tokens, share_blocks
from traces.formats.about import LENGTHS, SINGLE, About
from traces.formats.mooncake import SINGLE_TURNS
from traces.formats.shared.rows import first_row, in_seconds, lengths, rows
from traces.formats.shared.timed_calls import UNNAMED_TOOL
from traces.lenient import MAX_GAP_S, Repairs, items, mapping
from traces.program import Program, Turn

ABOUT = About(
    name="llmservingsim",
    holds="workloads of LLMServingSim",
    tool_times="unstated",
    accuracy=LENGTHS,
    without=SINGLE,
    title="LLMServingSim",
    rules=(
        "Gaps are `tool_duration_ns`, **unstated**. With `input_tok_ids`, prompts share blocks "
        "of 16 equal ids"
    ),
)

BLOCK_TOKENS = 16
"""Tokens per hash of recorded token ids."""


def sniff(first_bytes: bytes) -> bool:
    row = first_row(first_bytes)
    return "arrival_time_ns" in row and bool({"sub_requests", "input_toks"} & row.keys())


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    programs: dict[str, Program] = {}
    hashes_of: dict[str, list[Hashes]] = {}
    for number, row in enumerate(rows(data, repairs)):
        id = identifier(row.get("session_id")) or f"{name}-{number}"
        if id in programs:
            repairs.add(f"a second session with id {id}: numbered")
            id = f"{id}#{number}"
        if "sub_requests" not in row:
            repairs.add(SINGLE_TURNS)
        requests = items(row.get("sub_requests")) if "sub_requests" in row else [row]
        found = [
            (counts, mapping(request))
            for request in requests
            if (counts := lengths(*_counts(mapping(request)), repairs)) is not None
        ]
        if not found:
            repairs.add("a line without a usable request: left out")
            continue
        turns = _turns(found, repairs)
        start_s = in_seconds(row.get("arrival_time_ns"), 1e9)
        programs[id] = Program(id, turns, recorded_start_s=start_s)
        hashes_of[id] = [_token_hashes(request) for _, request in found]
    if not programs:
        raise TraceRejected("no request with prompt tokens")
    if not any(any(hashes) for hashes in hashes_of.values()):
        return list(programs.values())
    return share_blocks(list(programs.values()), hashes_of, BLOCK_TOKENS)


def _counts(request: JsonObject) -> tuple[object, object]:
    return request.get("input_toks"), request.get("output_toks")


def _turns(
    requests: Sequence[tuple[tuple[int, int], JsonObject]], repairs: Repairs
) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for (prompt, output), request in requests:
        last = len(turns) + 1 == len(requests)
        gap_s = in_seconds(request.get("tool_duration_ns"), 1e9)
        if gap_s is None and not last:
            repairs.add("a sub-request without tool_duration_ns: set to 0")
        gap_s = 0.0 if last else round(min(gap_s or 0.0, MAX_GAP_S), 6)
        turns.append(Turn(prompt, output, 0, () if last else UNNAMED_TOOL, tool_gap_s=gap_s))
    for i, (before, turn) in enumerate(pairwise(turns), 1):
        kept = kept_tokens(before.prompt_tokens, before.output_tokens, turn.prompt_tokens, None, 1)
        repairs.add(
            "a prompt that grows: inferred that it repeats the previous one"
            if kept
            else "a prompt that does not grow: nothing of the previous one counts as kept"
        )
        turns[i] = replace(turn, kept_tokens=kept)
    return tuple(turns)


def _token_hashes(request: JsonObject) -> Hashes:
    """Return a hash of each full block of the prompt's token ids."""
    ids = items(request.get("input_tok_ids"))
    if not all(isinstance(id, int) for id in ids):
        return ()
    full = len(ids) // BLOCK_TOKENS * BLOCK_TOKENS
    return [hash(tuple(ids[i : i + BLOCK_TOKENS])) for i in range(0, full, BLOCK_TOKENS)]
