"""The replica of a new program (`binding_strategy` of `servers.routers.program_scheduling`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from servers.routers.hash_ring import HashRing
from servers.routers.program_backend import Backend

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
