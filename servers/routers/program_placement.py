"""The replica of a new program, and of one which moves.

Rules 1 and 4 of `servers.routers.program_scheduling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from servers.routers.hash_ring import HashRing
from servers.routers.program_backend import Backend, RoutedProgram, resume_key

Strategy = Literal[
    "consistent_hash", "least_program_count", "program_round_robin", "reasoning_token_balance"
]


class Binding:
    def __init__(self, strategy: Strategy, backends: Sequence[Backend]) -> None:
        self._strategy = strategy
        self._backends = backends
        self._ring = HashRing(len(backends))
        self._bound = 0
        """Number of programs that were bound."""

    def bind(self, program_id: str) -> int:
        self._bound += 1
        if self._strategy == "consistent_hash":
            return self._ring.replica(program_id)
        if self._strategy == "program_round_robin":
            return (self._bound - 1) % len(self._backends)
        if self._strategy == "least_program_count":
            return min((len(b.active) + len(b.waiting), b.replica.index) for b in self._backends)[1]
        return min(
            (_bound_tokens(b) - b.replica.kv_tokens, b.replica.index) for b in self._backends
        )[1]


def _bound_tokens(backend: Backend) -> int:
    active = sum(program.tokens for program in backend.active.values())
    return active + sum(program.tokens for program in backend.waiting.values())


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
