"""The engine's own account of each turn, out of the events that the vLLM plug-in appends to a file.

In: a JSONL with `t` in seconds of this machine's monotonic clock (`servers.vllm.plugin.event_log`),
read as
it grows. Out: the events on the cell's clock, and for a turn's line what its client cannot see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from harness.replay.schedule import Line

Key = tuple[str, int]


@dataclass(slots=True)
class Served:
    """What became of one turn, on the cell's clock."""

    arrived_s: float
    pinned_hit: bool
    admitted_s: float | None = None
    hit_tokens: int | None = None
    external_tokens: int = 0
    """Of these, from an offload tier."""
    loading_s: list[float] = field(default_factory=list)
    loaded_s: list[float] = field(default_factory=list)
    preempted_s: list[float] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)


class EngineLog:
    def __init__(
        self, path: Path, started_monotonic_s: float, on_event: Callable[[Line], None] | None
    ) -> None:
        """What is in the file already belongs to others who used the server."""
        self._file = path.open("rb")
        self._file.seek(0, 2)
        self._rest = b""
        self._origin_s = started_monotonic_s
        self._on_event = on_event
        self._served: dict[Key, Served] = {}
        self._pinned: set[str] = set()

    def close(self) -> None:
        self._file.close()

    def told(self, line: Line) -> Line:
        """What the engine knows better of a turn's line. With loads and preemptions taken out of
        prefill or decode, whichever they fell into, the parts still sum to the turn's time. Which
        tier a hit came from is not told: all count as DRAM."""
        self.read()
        served = self._served.pop((str(line["program_id"]), int(str(line["turn"]))), None)
        return {} if served is None else _account(line, served)

    def read(self) -> None:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            event = orjson.loads(line)
            event["t"] -= self._origin_s
            self._follow(event)
            if self._on_event is not None:
                self._on_event(event)

    def _follow(self, event: dict[str, Any]) -> None:
        program, key, now_s = event["program_id"], (event["program_id"], event["turn"]), event["t"]
        name = event["event"]
        if name == "arrival":
            self._served[key] = Served(now_s, program in self._pinned)
        elif name == "pinned":
            self._pinned.add(program)
        elif name == "unpinned":
            self._pinned.discard(program)
        elif (served := self._served.get(key)) is None:
            return
        elif name == "waiting_to_running":
            served.admitted_s, served.hit_tokens = now_s, event["hit_length"]
            served.external_tokens = event.get("external_length", 0)
        elif name == "loading":
            served.loading_s.append(now_s)
        elif name == "loaded":
            served.loaded_s.append(now_s)
        elif name == "preempted":
            served.preempted_s.append(now_s)
        elif name == "evicted_to_running":
            served.resumed_s.append(now_s)


class EngineLogs:
    """Of each replica, where it has one."""

    def __init__(
        self,
        paths: Iterable[Path | None],
        started_monotonic_s: float,
        on_event: Callable[[Line], None] | None,
    ) -> None:
        self._logs = [
            None if path is None else EngineLog(path, started_monotonic_s, on_event)
            for path in paths
        ]

    def completed(self, line: Line) -> Line:
        """With what its `replica`'s engine knows better."""
        log = self._logs[line["replica"]]
        return line if log is None else line | log.told(line)

    def close(self) -> None:
        """Read to their ends."""
        for log in filter(None, self._logs):
            log.read()
            log.close()


def _account(line: Any, served: Served) -> Line:
    sent_s, first_s, end_s = line["sent_at_s"], line["first_token_at_s"], line["finished_at_s"]
    early_s, late_s, away = _before_and_after(first_s, served.preempted_s, served.resumed_s, end_s)
    early_load_s, late_load_s, _ = _before_and_after(
        first_s, served.loading_s, served.loaded_s, end_s
    )
    queue_s = None if served.admitted_s is None else served.admitted_s - served.arrived_s
    hits = served.hit_tokens
    return {
        "device_hit_tokens": None if hits is None else hits - served.external_tokens,
        "dram_hit_tokens": None if hits is None else served.external_tokens,
        "queue_s": queue_s,
        "load_s": early_load_s + late_load_s,
        "prefill_s": (
            None
            if first_s is None or queue_s is None
            else first_s - sent_s - queue_s - early_s - early_load_s
        ),
        "decode_s": None if first_s is None else end_s - first_s - late_s - late_load_s,
        "preempted_s": early_s + late_s,
        "preemptions": away,
        "pinned_hit": served.pinned_hit,
    }


def _before_and_after(
    first_s: float | None, starts_s: list[float], ends_s: list[float], end_s: float
) -> tuple[float, float, int]:
    """Seconds before the first token and after it, and how often; what has no end lasts to the
    turn's."""
    spans = list(zip(starts_s, ends_s + [end_s] * (len(starts_s) - len(ends_s)), strict=True))
    early_s = sum(b - a for a, b in spans if first_s is None or a < first_s)
    return early_s, sum(b - a for a, b in spans) - early_s, len(spans)
