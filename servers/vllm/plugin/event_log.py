"""Writes engine events as JSONL, flushed line by line (docs/reference/run-folder.md, engine.jsonl).

`t` is in seconds of the machine's monotonic clock (`time.monotonic`), which all processes share.
Readers subtract the start of their cell.
"""

from __future__ import annotations

from typing import Any

from msgspec.json import encode

from servers.records.turns import EventRecord
from servers.vllm.plugin.request_tags import VllmTurn


class EventLog:
    def __init__(self, path: str | None) -> None:
        self._file = open(path, "ab") if path else None  # noqa: SIM115

    def write(self, t: float, event: str, turn: VllmTurn, fields: dict[str, Any]) -> None:
        """Write an event. `fields` are its optional fields of `EventRecord`."""
        if self._file is None:
            return
        program_id, number = turn.view.program_id, turn.number
        record = EventRecord(t=t, event=event, program_id=program_id, turn=number, **fields)
        self._file.write(encode(record) + b"\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
