"""Turns as CSV, one a line, in the order of their program: lengths in tokens, times in seconds.

    program,prompt_tokens,output_tokens,tool,tool_gap_s
    fix-bug,1500,200,pytest,3.5
    fix-bug,1900,80,,

A prompt is taken to repeat the whole context of its program's previous turn.
"""

from __future__ import annotations

import csv
import io

from servers.basics.errors import TraceRejected
from traces.lenient import Repairs
from traces.program import Program, Turn

HEADER = "program,prompt_tokens,output_tokens,tool,tool_gap_s"


def sniff(first_bytes: bytes, /) -> bool:
    return first_bytes.startswith(HEADER.encode())


def load(data: bytes, name: str, repairs: Repairs, /) -> list[Program]:
    turns: dict[str, list[Turn]] = {}
    if not data.endswith(b"\n"):
        repairs.add("no line end after the last turn: taken as complete")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise TraceRejected(f"{name}: not UTF-8 ({error.reason} at byte {error.start})") from None
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        program = turns.setdefault(row["program"], [])
        try:
            program.append(_turn(row, program[-1] if program else None))
        except (TypeError, ValueError) as error:
            raise TraceRejected(f"{name}, line {number}: {error}") from None
    return [Program(id=id, turns=tuple(found)) for id, found in turns.items()]


def _turn(row: dict[str, str], before: Turn | None) -> Turn:
    prompt_tokens = int(row["prompt_tokens"])
    return Turn(
        prompt_tokens=prompt_tokens,
        output_tokens=int(row["output_tokens"]),
        kept_tokens=min(before.context_tokens, prompt_tokens - 1) if before else 0,
        tools=(row["tool"],) if row["tool"] else (),
        tool_gap_s=float(row["tool_gap_s"] or 0),
    )
