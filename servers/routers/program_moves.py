"""Programs that resume on another replica (rule 4 of `servers.routers.program_scheduling`)."""

from __future__ import annotations

from collections.abc import Sequence

from servers.routers.program_backend import Backend, RoutedProgram, resume_key


class Moves:
    def __init__(
        self,
        backends: Sequence[Backend],
        by_arrival: bool,
        interval_s: float,
        headroom_ratio: float,
    ) -> None:
        self._backends = backends
        self._by_arrival = by_arrival
        """Whether programs resume on their own replica in order of arrival."""
        self._interval_s = interval_s
        self._headroom_ratio = headroom_ratio

    def next(self, now_s: float) -> tuple[str, Backend] | None:
        """Return the program that moves next, and where. New programs do not move."""
        others = [other for other in self._backends if not other.waiting and other.turns.is_full]
        if not others:
            return None
        items = [item for backend in self._backends for item in backend.waiting.items()]
        items = [item for item in items if item[1].last_finished_s >= 0]
        items.sort(key=lambda item: resume_key(item, True, now_s))
        for program_id, program in items:
            found = self._destinations(others, program_id, program, now_s)
            if found:
                return program_id, min(found, key=lambda other: _load(other, program))
        return None

    def _destinations(
        self, others: Sequence[Backend], program_id: str, program: RoutedProgram, now_s: float
    ) -> list[Backend]:
        source = self._backends[program.home]
        if not source.turns.is_full or now_s - program.queued_s < self._interval_s:
            return []
        if not self._is_under_pressure(source, program_id, program, now_s):
            return []
        free = source.free + self._headroom_ratio * program.context
        return [
            other
            for other in others
            if other is not source and other.free >= free and other.admits(program, now_s)
        ]

    def _is_under_pressure(
        self, source: Backend, program_id: str, program: RoutedProgram, now_s: float
    ) -> bool:
        """Return whether turns wait in the program's replica, or an earlier program for it."""
        if not source.has_gate or source.is_full:
            return True
        mine = resume_key((program_id, program), self._by_arrival, now_s)
        return any(
            now_s - item[1].queued_s >= self._interval_s
            and resume_key(item, self._by_arrival, now_s) < mine
            for item in source.waiting.items()
        )


def _load(backend: Backend, program: RoutedProgram) -> tuple[int, float, int, int]:
    """Return waiting turns, the share of the KV that all and the program will use, programs, and
    the number of the replica."""
    replica = backend.replica
    tokens = backend.used + program.tokens + backend.reserve()
    return replica.waiting, tokens / replica.kv_tokens, len(backend.active), replica.index
