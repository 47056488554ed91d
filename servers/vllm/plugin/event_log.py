"""Engine events as JSONL, flushed line by line (docs/reference/run-folder.md, engine.jsonl).

`t` is seconds of this machine's monotonic clock (`time.monotonic`), which all its processes share:
who reads them subtracts the start of its cell.
"""

from __future__ import annotations

import json

from servers.vllm.plugin.request_tags import Turn


class EventLog:
    def __init__(self, path: str | None) -> None:
        self._file = open(path, "a", encoding="utf-8") if path else None  # noqa: SIM115

    def write(self, t: float, event: str, turn: Turn, fields: dict[str, object]) -> None:
        if self._file is None:
            return
        line = {"t": t, "event": event, "program_id": turn.view.program_id, "turn": turn.number}
        self._file.write(json.dumps(line | fields, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
