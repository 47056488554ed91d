"""Exports the `scheduler_timestamps` of Continuum's vLLM fork. In: a cell. Out: JSON.

The format is that of the implementation analysis, §10: a list of events for each program, in order
of time. Times are seconds on the cell's clock, where the fork writes seconds since the epoch; its
analysis uses differences only. Events that the fork does not record (reloads) are left out.
"""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import to_builtins

from reports.run_folder.lines import read_records
from reports.run_folder.read import Cell
from servers.basics.errors import InvalidRunFolder
from servers.records.turns import EventRecord

KEYS = {
    "arrival": "Request_arrival_time",
    "waiting_to_running": "waiting_to_running",
    "preempted": "Request_evicted_from_running_queue_time",
    "evicted_to_running": "evicted_to_running",
    "finished": "Request_departure_time",
    "pinned": "pinned_time",
    "unpinned": "unpinned_time",
}
"""The fork's key for the time of each event."""
LENGTHS = ("prompt_length", "hit_length")


def scheduler_timestamps(cell: Cell) -> bytes:
    """Return JSON that maps each program to its list of events."""
    path = cell.folder / "engine.jsonl"
    history: dict[str, list[dict[str, Any]]] = {}
    for event in read_records(path, EventRecord):
        if (key := KEYS.get(event.event)) is None:
            continue
        fields = to_builtins(event)
        lengths = {name: fields[name] for name in LENGTHS if name in fields}
        history.setdefault(event.program_id, []).append({key: event.t, **lengths})
    if not history:
        raise InvalidRunFolder(f"{path}: no events; use a run of an engine that reports them")
    return orjson.dumps(history, option=orjson.OPT_INDENT_2)
