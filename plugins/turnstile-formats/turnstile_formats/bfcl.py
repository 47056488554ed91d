"""Results of the Berkeley Function Calling Leaderboard, version 4 (`BFCL_v4_*_result.json`).

In: a line for each task, `{id, result, input_token_count, output_token_count, latency}`. In the
multi-turn and agentic categories, the values are lists (one item per user turn) of lists (one item
per step). Out: a program per task with a turn per step. Tool times are not recorded, so tasks of
several steps need `--synthesise-gaps`. `latency` is the model's time in seconds, and is not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.assumptions import Assumptions
from traces.formats.about import DRAW, LENGTHS, UNRECORDED, About
from traces.formats.shared.calls import Call, fill_usage, make_turn, unique_id
from traces.formats.shared.rows import line_documents
from traces.lenient import Repairs, items, mapping, starts, tokens
from traces.program import Program

ABOUT = About(
    name="bfcl",
    holds="results of the Berkeley leaderboard",
    tool_times=UNRECORDED,
    starts=False,
    accuracy=LENGTHS,
    without=DRAW,
    title="BFCL (`BFCL_v4_*_result.json`)",
    rules=(
        "A turn is a step; tools are the called functions. `latency` is the model's, so gaps "
        "are unknown"
    ),
)

FIELDS = {"id", "result", "input_token_count", "output_token_count"}
_CALL = re.compile(r"\[?\s*([A-Za-z_][\w.]*)\(")


def sniff(first_bytes: bytes) -> bool:
    return any(mapping(start).keys() >= FIELDS for start in starts(first_bytes))


def load_with(data: bytes, name: str, repairs: Repairs, assumptions: Assumptions) -> list[Program]:
    programs: list[Program] = []
    used: dict[str, int] = {}
    for row in filter(None, map(mapping, line_documents(data, repairs))):
        calls = [call for call in _calls(row) if call.prompt]
        if not calls:
            repairs.add("a task without token counts, which failed: left out")
            continue
        id = unique_id(identifier(row.get("id")) or name, used)
        fill_usage(calls, repairs)
        tools = [call.tools for call in calls]
        gaps = assumptions.complete_gaps(id, tools, [None] * len(calls), repairs)
        turns = [make_turn(calls, i, gap, repairs) for i, gap in enumerate(gaps)]
        programs.append(Program(id, tuple(turns)))
    if not programs:
        raise TraceRejected("no task with token counts")
    return programs


def _calls(row: JsonObject) -> Iterator[Call]:
    """Yield the calls of a task, in order. A single-turn task has numbers instead of lists."""
    prompts, outputs = row.get("input_token_count"), row.get("output_token_count")
    if not isinstance(prompts, list):
        yield _call(prompts, outputs, row.get("result"))
        return
    for t, steps in enumerate(prompts):
        out, results = _at(outputs, t), _at(row.get("result"), t)
        if not isinstance(steps, list):
            yield _call(steps, out, results)
            continue
        for s, prompt in enumerate(steps):
            yield _call(prompt, _at(out, s), _at(results, s))


def _at(values: object, index: int) -> Any:
    listed = items(values)
    return listed[index] if index < len(listed) else None


def _call(prompt: object, output: object, result: object) -> Call:
    return Call(tokens(prompt) or 0, tokens(output) or 0, tools=tuple(_names(result)))


def _names(result: object) -> Iterator[str]:
    """Yield the called functions: `{"ls": "{…}"}`, or text such as `ls(a=True)`."""
    for call in result if isinstance(result, list) else [result]:
        if isinstance(call, dict):
            yield from map(text, call)
        elif found := _CALL.match(text(call)):
            yield found[1]
