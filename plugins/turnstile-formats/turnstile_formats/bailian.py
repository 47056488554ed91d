"""Qwen-Bailian's anonymised production traces (`qwen-bailian-usagetraces-anon`).

In: a request per line, `{chat_id, parent_chat_id, timestamp, input_length, output_length, type,
turn, hash_ids}`, with times in seconds and hashes of blocks of 16 tokens. Out: a program per chain
of `parent_chat_id`. A second answer to the same request begins a new program.
"""

from __future__ import annotations

from typing import Any

from servers.basics.errors import TraceRejected
from traces.formats.about import CALL_END, MEASURED, SINGLE, About
from traces.formats.mooncake import usable_hashes
from traces.formats.shared.calls import Call
from traces.formats.shared.rows import first_row, in_seconds, lengths, rows
from traces.formats.shared.timed_calls import TimedAgent, estimate_ends, programs_of, share_hashes
from traces.lenient import Repairs
from traces.program import Program

ABOUT = About(
    name="bailian",
    holds="requests of a service, with block hashes",
    tool_times="inferred",
    repeats=MEASURED,
    accuracy=f"{CALL_END}; gaps are people's pauses",
    without=SINGLE,
    title="Qwen-Bailian",
    rules=(
        "A chain of `parent_chat_id` is a program. Blocks have 16 tokens. Written from a "
        "description"
    ),
)

BLOCK_TOKENS = 16
NO_PARENT = -1


def sniff(first_bytes: bytes) -> bool:
    return {"chat_id", "parent_chat_id", "input_length"} <= first_row(first_bytes).keys()


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    chains: list[TimedAgent] = []
    last_of: dict[Any, TimedAgent] = {}
    """The chain that ends with a request, by the request's id."""
    for number, row in enumerate(rows(data, repairs)):
        found = lengths(row.get("input_length"), row.get("output_length"), repairs)
        if found is None:
            continue
        hashes = usable_hashes(row.get("hash_ids"))
        call = Call(*found, in_seconds(row.get("timestamp"), 1), hashes=hashes)
        id, parent = _key(row.get("chat_id")), _key(row.get("parent_chat_id"))
        chain = last_of.pop(parent, None) if parent != NO_PARENT else None
        if chain is None:
            if parent != NO_PARENT:
                repairs.add("a request whose parent is missing or was continued before: begins a "
                            "new program")  # fmt: skip
            chain = TimedAgent(f"{name}-{number}", [])
            chains.append(chain)
        chain.calls.append(call)
        last_of[id] = chain
    if not chains:
        raise TraceRejected("no request with prompt tokens")
    for chain in chains:
        estimate_ends(chain.calls if len(chain.calls) > 1 else [], repairs)
    programs, parts = programs_of(chains, repairs)
    return share_hashes(programs, parts, BLOCK_TOKENS)


def _key(value: object) -> int | str | None:
    return value if isinstance(value, int | str) else None
