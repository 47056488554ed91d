"""Sums the memory held by the pins of a cell, and the part that was not reused.

In: the events of a cell. Out: KV blocks times seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msgspec import UNSET
from msgspec.json import Decoder

from reports.metrics.metric import SHARE, Facts, Group, Metric, Unit, Value
from reports.run_folder.lines import DISCARD_AND_RERUN, find_lines, read_records, read_text
from reports.run_folder.read import CellRun
from servers.basics.errors import InvalidRunFolder
from servers.basics.text import MALFORMED
from servers.records.turns import EventRecord


def is_of_pin(event: EventRecord) -> bool:
    return event.event in ("pinned", "unpinned")


def read_pin_events(cell: CellRun) -> list[EventRecord] | None:
    """Return the events of pins; None for a cell without events."""
    path = cell.folder / "engine.jsonl"
    text = read_text(path)
    if b"\n" not in text:
        return None
    try:
        events = Decoder(EventRecord).decode_lines(b"\n".join(_lines_with(text, b'pinned"')))
    except MALFORMED:
        for _ in read_records(path, EventRecord):  # raises with the line's number
            pass
        raise
    if any(event.event == "pinned" and event.blocks is UNSET for event in events):
        found = find_lines(path)
        raise InvalidRunFolder(f"{found}: a pinned event lacks blocks; {DISCARD_AND_RERUN}")
    return events


def _lines_with(text: bytes, substring: bytes) -> Iterator[bytes]:
    """Yield complete lines with `substring`; parsing all lines takes several times longer."""
    end = 0
    while (at := text.find(substring, end)) >= 0:
        start, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
        if end < 0:
            return  # The process was killed while it wrote this line.
        yield text[start:end]


def _pin_time(events: Iterable[EventRecord], begin_s: float, end_s: float) -> tuple[float, float]:
    """Return Σ of blocks × seconds over the pins between two times, and the part of pins that were
    not reused, including those without an end, which last until `end_s`."""

    def held_s(since_s: float, until_s: float) -> float:
        return max(0.0, min(until_s, end_s) - max(since_s, begin_s))

    pins: dict[str, tuple[float, int]] = {}
    used = unused = 0.0
    for event in events:
        if event.event == "pinned":
            pins[event.program_id] = event.t, event.blocks or 0
        elif event.event == "unpinned" and event.program_id in pins:
            since_s, blocks = pins.pop(event.program_id)
            block_s = blocks * held_s(since_s, event.t)
            if event.reason == "reused":
                used += block_s
            else:
                unused += block_s
    unused += sum(blocks * held_s(since_s, end_s) for since_s, blocks in pins.values())
    return used + unused, unused


def _pins(facts: Facts) -> dict[str, Value]:
    cell, jobs = facts.cell, facts.jobs
    begin_s, end_s = facts.span.begin_s, facts.span.end_s
    if cell.done.window is None:  # failed jobs have pins too
        begin_s, end_s = float(jobs["arrival_s"].min()), float(jobs["departure_s"].max())
    if not end_s > begin_s:
        return dict.fromkeys(PINS.columns, math.nan)
    events = facts.pin_events()
    held = unused = math.nan
    if events is not None:
        held, unused = _pin_time(events, begin_s, end_s)
    blocks = cell.done.kv_blocks or cell.config.profile.kv_blocks or math.nan
    return {
        "pin_block_s": held,
        "pin_unused_block_s": unused,
        "pinned_ratio": held / (blocks * (end_s - begin_s)),
    }


PINS = Group(
    _pins,
    (
        Metric("pin_block_s", Unit("block·s")).means(
            "Pin time K, in KV blocks times seconds.",
            "Σ of blocks × (unpinned − pinned) from `engine.jsonl`, in the time of the cell"
            " of a stream. A pin without an end lasts until the last d_j.",
        ),
        Metric("pin_unused_block_s", Unit("block·s")).means(
            "The part of K in pins that were not reused, including those without an end."
        ),
        Metric("pinned_ratio", SHARE, title="Pinned").means(
            "Share of the KV cache that pins held, over the time of the cell.",
            "K ÷ (KV blocks × time of the cell).",
        ),
    ),
)
