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


class Places:
    """Of jobs, on servers numbered from 0."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._replicas: dict[str, int] = {}

    def replica_of(self, job_id: str) -> int:
        """Of a new job, the one with the fewest jobs; it stays there, where its KV is."""
        if job_id not in self._replicas:
            counts = [0] * self._servers
            for replica in self._replicas.values():
                counts[replica] += 1
            self._replicas[job_id] = counts.index(min(counts))
        return self._replicas[job_id]

    def ended(self, job_id: str) -> None:
        self._replicas.pop(job_id, None)
