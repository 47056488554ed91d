"""The servers behind a gateway, and which of them serves a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Backend:
    """A server behind the gateway."""

    url: str
    """Without `/v1`."""
    tagged: bool
    """It takes `vllm_xargs`."""
    events: Path | None = None
    """The file that the vLLM plug-in writes its events to."""


AVOIDED_S = 30.0


class ServerAssignment:
    """Of jobs, on servers numbered from 0."""

    def __init__(self, servers: int) -> None:
        self._jobs = [0] * servers
        self._replicas: dict[str, int] = {}
        self._avoided_until_s = [0.0] * servers

    def replica_of(self, job_id: str, now_s: float) -> int:
        """Of a new job, the one with the fewest jobs; it stays there, where its KV is. One that
        failed is avoided for a while: a dead server ends its jobs fast, and would draw all."""
        if job_id not in self._replicas:
            avoided = [until_s > now_s for until_s in self._avoided_until_s]
            replica = min(range(len(avoided)), key=lambda k: (avoided[k], self._jobs[k]))
            self._replicas[job_id] = replica
            self._jobs[replica] += 1
        return self._replicas[job_id]

    def served(self, replica: int, now_s: float, *, well: bool) -> None:
        self._avoided_until_s[replica] = 0.0 if well else now_s + AVOIDED_S

    def ended(self, job_id: str) -> None:
        if (replica := self._replicas.pop(job_id, None)) is not None:
            self._jobs[replica] -= 1
