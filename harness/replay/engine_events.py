"""Reads the vLLM plug-in's events, and adds what the engine measured to the turns' records.

In: a JSONL file of `EventRecord`s, read as it grows, with `t` in seconds on the machine's monotonic
clock (`servers.vllm.plugin.event_log`). Out: the events on the cell's clock, and the fields of each
turn's record that its client cannot measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import UNSET
from msgspec.json import Decoder

from servers.records.turns import EventRecord, TurnRecord

Key = tuple[str, int]


@dataclass(slots=True)
class ServedTurn:
    """The events of one turn. Times in seconds on the cell's clock."""

    arrived_s: float
    pinned_hit: bool
    admitted_s: float | None = None
    hit_tokens: int | None = None
    external_tokens: int = 0
    """The part of `hit_tokens` that was loaded from an offload tier."""
    loading_s: list[float] = field(default_factory=list)
    loaded_s: list[float] = field(default_factory=list)
    preempted_s: list[float] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)


class EngineLog:
    def __init__(
        self,
        path: Path,
        started_monotonic_s: float,
        on_event: Callable[[EventRecord], None] | None,
    ) -> None:
        """Events that are already in the file are skipped: they belong to earlier cells."""
        self._file = path.open("rb")
        self._file.seek(0, 2)
        self._rest = b""
        self._origin_s = started_monotonic_s
        self._on_event = on_event
        self._decoder = Decoder(EventRecord)
        self._served: dict[Key, ServedTurn] = {}
        self._pinned: set[str] = set()

    def close(self) -> None:
        self._file.close()

    def arrived_s(self, key: Key) -> float | None:
        """Return when a turn arrived here; None if it has not, or was completed."""
        self.read()
        served = self._served.get(key)
        return None if served is None else served.arrived_s

    def complete(self, record: TurnRecord) -> None:
        """Add what the engine measured to the record of an ended turn.

        The time of loads and preemptions is subtracted from prefill or decode, depending on when
        they happened, so that the parts still sum to the turn's time. All external hits count as
        DRAM, because the events do not name the tier.
        """
        self.read()
        served = self._served.pop((record.program_id, record.turn), None)
        if served is not None:
            _add(served, record)

    def read(self) -> None:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            event = self._decoder.decode(line)
            event.t -= self._origin_s
            self._follow(event)
            if self._on_event is not None:
                self._on_event(event)

    def _follow(self, event: EventRecord) -> None:
        program, now_s, name = event.program_id, event.t, event.event
        key = program, event.turn
        if name == "arrival":
            self._served[key] = ServedTurn(now_s, program in self._pinned)
        elif name == "pinned":
            self._pinned.add(program)
        elif name == "unpinned":
            self._pinned.discard(program)
        elif (served := self._served.get(key)) is None:
            return
        elif name == "waiting_to_running":
            served.admitted_s, served.hit_tokens = now_s, event.hit_length or 0
            served.external_tokens = event.external_length or 0
        elif name == "loading":
            served.loading_s.append(now_s)
        elif name == "loaded":
            served.loaded_s.append(now_s)
        elif name == "preempted":
            served.preempted_s.append(now_s)
        elif name == "evicted_to_running":
            served.resumed_s.append(now_s)


class EngineLogs:
    """The event files of all replicas; None for a replica without one."""

    def __init__(
        self,
        paths: Iterable[Path | None],
        started_monotonic_s: float,
        on_event: Callable[[EventRecord], None] | None,
    ) -> None:
        self._logs = [
            None if path is None else EngineLog(path, started_monotonic_s, on_event)
            for path in paths
        ]

    def find(self, record: TurnRecord) -> None:
        """Set the replica of a turn that a router of another project distributed, and how long it
        held the turn. If a retry sent the turn to several, the last one counts. Without events of
        the turn both stay unknown."""
        key = record.program_id, record.turn
        arrivals = [
            (arrived_s, index)
            for index, log in enumerate(self._logs)
            if log is not None and (arrived_s := log.arrived_s(key)) is not None
        ]
        if arrivals:
            arrived_s, record.replica = max(arrivals)
            record.held_s = max(0.0, arrived_s - record.sent_at_s - (record.refused_s or 0.0))

    def complete(self, record: TurnRecord) -> None:
        """Add what the engine of the record's replica measured."""
        if record.replica is UNSET:
            raise RuntimeError("a live turn without a replica")
        log = self._logs[record.replica]
        if log is not None:
            log.complete(record)

    def close(self) -> None:
        """Read the files to their ends and close them."""
        for log in filter(None, self._logs):
            log.read()
            log.close()


def _add(served: ServedTurn, record: TurnRecord) -> None:
    sent_s, first_s, end_s = record.sent_at_s, record.first_token_at_s, record.finished_at_s
    if end_s is None:
        raise RuntimeError("the turn has not ended")
    early_s, late_s, preemptions = _before_and_after(
        first_s, served.preempted_s, served.resumed_s, end_s
    )
    early_load_s, late_load_s, _ = _before_and_after(
        first_s, served.loading_s, served.loaded_s, end_s
    )
    record.queue_s = record.prefill_s = record.decode_s = None
    if served.admitted_s is not None:
        waited_s = (record.held_s or 0.0) + (record.refused_s or 0.0)
        record.queue_s = served.admitted_s - served.arrived_s + waited_s
    record.device_hit_tokens = record.dram_hit_tokens = None
    if served.hit_tokens is not None:
        record.device_hit_tokens = served.hit_tokens - served.external_tokens
        record.dram_hit_tokens = served.external_tokens
    record.load_s = early_load_s + late_load_s
    if first_s is not None:
        record.decode_s = end_s - first_s - late_s - late_load_s
        if record.queue_s is not None:
            record.prefill_s = first_s - sent_s - record.queue_s - early_s - early_load_s
    record.preempted_s = early_s + late_s
    record.preemptions = preemptions
    record.pinned_hit = served.pinned_hit


def _before_and_after(
    first_s: float | None, starts_s: list[float], ends_s: list[float], end_s: float
) -> tuple[float, float, int]:
    """Return the seconds of all spans before and after the first token, and the number of spans.

    A span without an end lasts until the turn ends.
    """
    spans = list(zip(starts_s, ends_s + [end_s] * (len(starts_s) - len(ends_s)), strict=True))
    early_s = sum(b - a for a, b in spans if first_s is None or a < first_s)
    return early_s, sum(b - a for a, b in spans) - early_s, len(spans)
