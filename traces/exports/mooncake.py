"""Mooncake's request traces, as published: a request per line, with its absolute start.

In: programs. Out: `{timestamp, input_length, output_length, hash_ids}`, in order of time, in
milliseconds, with ids of blocks of 512 tokens that are valid within the whole file. There are no
sessions, since the two extensions for them disagree: Dynamo reads the rows of a session as whole
prompts, AIPerf as their new parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

import orjson

from traces.exports.contents import BlockIds, add_block_losses
from traces.exports.timeline import timeline
from traces.formats.mooncake import BLOCK_TOKENS
from traces.lenient import Repairs
from traces.program import Program

FOLDER = False
NO_SESSIONS = "mooncake has no sessions: a program of several turns becomes single requests"
NO_GAPS = (
    "mooncake has no tool gaps: a later turn starts at a fixed time, even if the one before is late"
)
NO_SUB_AGENTS = "mooncake has no sub-agents: their turns start at fixed times, and no turn waits"
NO_TOOLS = "mooncake has no tool names"


def write(programs: Sequence[Program], losses: Repairs) -> Iterator[bytes]:
    times = timeline(programs, losses)
    blocks = BlockIds(BLOCK_TOKENS, partial=True)
    rows: list[tuple[int, bytes]] = []
    for program in programs:
        _add_losses(program, losses)
        ids_of_turns = list(blocks.of(program))
        add_block_losses(program, ids_of_turns, BLOCK_TOKENS, losses)
        turns = zip(program.turns, times[program.id], ids_of_turns, strict=True)
        for turn, time, ids in turns:
            row = {
                "timestamp": round(time.start_s * 1e3),
                "input_length": turn.prompt_tokens,
                "output_length": turn.output_tokens,
                "hash_ids": ids,
            }
            rows.append((round(time.start_s * 1e3), orjson.dumps(row) + b"\n"))
    rows.sort(key=itemgetter(0))
    return (line for _, line in rows)


def _add_losses(program: Program, losses: Repairs) -> None:
    losses.add(NO_SESSIONS, len(program.turns) > 1)
    losses.add(NO_GAPS, len(program.turns) - 1)
    losses.add(NO_SUB_AGENTS, program.fork is not None)
    losses.add(NO_TOOLS, sum(bool(turn.tools) for turn in program.turns))
