"""Events of a cell in; how much memory its pins held, and how much of that for nothing, out.

docs/reference/metrics.md, "Of a cell". KV blocks and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from reports.run_folder.read import ANEW, Cell
from servers.errors import InvalidRunFolder


class PinTime(NamedTuple):
    held_block_s: float
    """Blocks of each pin times the seconds that it held them. NaN where no events are told."""
    unused_block_s: float
    """Of pins that ended otherwise than by being reused."""


def pin_time(cell: Cell, end_s: float) -> PinTime:
    """`end_s`: when the cell ended, and with it what was never unpinned."""
    path = cell.folder / "engine.jsonl"
    told = path.read_bytes() if path.is_file() else b""
    if b"\n" not in told:
        return PinTime(math.nan, math.nan)
    try:
        return _sum(orjson.loads(b"[%s]" % b",".join(_lines_with(told, b'pinned"'))), end_s)
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise InvalidRunFolder(f"{path}: a pin's event cannot be read ({why}); {ANEW}") from None


def _lines_with(text: bytes, wanted: bytes) -> Iterator[bytes]:
    """Whole lines only; parsing, or just splitting, all of them takes several times as long."""
    end = 0
    while (at := text.find(wanted, end)) >= 0:
        start, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
        if end < 0:
            return  # It was being written when the process died.
        yield text[start:end]


def _sum(events: Iterable[dict[str, Any]], end_s: float) -> PinTime:
    held: dict[str, tuple[float, int]] = {}
    used = unused = 0.0
    for event in events:
        program = event["program_id"]
        if event["event"] == "pinned":
            held[program] = event["t"], event["blocks"]
        elif event["event"] == "unpinned" and program in held:
            since_s, blocks = held.pop(program)
            spent = blocks * (event["t"] - since_s)
            if event["reason"] == "reused":
                used += spent
            else:
                unused += spent
    unused += sum(blocks * max(0.0, end_s - since_s) for since_s, blocks in held.values())
    return PinTime(used + unused, unused)
