"""A cell in; the `scheduler_timestamps` of Continuum's vLLM fork out.

As the implementation analysis, §10, has them: a history for each program, in the order in which
things happened. Seconds on the cell's clock, where the fork has those of the epoch: its analysis
takes differences only. What the fork does not record (reloads) is left out.
"""

from __future__ import annotations

from typing import Any

import orjson

from reports.run_folder.read import Cell, checked_lines
from reports.run_folder.records import Event
from servers.errors import InvalidRunFolder

KEYS = {
    "arrival": "Request_arrival_time",
    "waiting_to_running": "waiting_to_running",
    "preempted": "Request_evicted_from_running_queue_time",
    "evicted_to_running": "evicted_to_running",
    "finished": "Request_departure_time",
    "pinned": "pinned_time",
    "unpinned": "unpinned_time",
}
"""Our events, and under which key the fork writes their time."""
LENGTHS = ("prompt_length", "hit_length")


def scheduler_timestamps(cell: Cell) -> bytes:
    """JSON: program → list of events."""
    path = cell.folder / "engine.jsonl"
    history: dict[str, list[dict[str, Any]]] = {}
    for event in checked_lines(path, Event):
        if (key := KEYS.get(event.get("event", ""))) is None:
            continue
        lengths = {name: event[name] for name in LENGTHS if name in event}
        history.setdefault(event["program_id"], []).append({key: event["t"], **lengths})
    if not history:
        raise InvalidRunFolder(f"{path}: no events; this engine told none")
    return orjson.dumps(history, option=orjson.OPT_INDENT_2)
