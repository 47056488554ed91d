"""The servers behind a gateway, and the assignment of jobs to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Backend:
    """A server behind the gateway."""

    url: str
    """Base URL without `/v1`."""
    tagged: bool
    """Whether the server accepts `vllm_xargs`."""
    events: Path | None = None
    """The file to which the vLLM plug-in writes its events."""


AVOIDED_S = 30.0
"""A server gets no new jobs for this time after a failed turn, if another server is available."""


class ServerAssignment:
    """Assigns jobs to servers, which are numbered from 0."""

    def __init__(self, servers: int) -> None:
        self._jobs = [0] * servers
        self._replicas: dict[str, int] = {}
        self._avoided_until_s = [0.0] * servers

    def replica_of(self, job_id: str, now_s: float) -> int:
        """Return the job's server; a new job gets the one with the fewest jobs.

        A job stays on its server, because its KV cache is there. A server is avoided after a
        failure, because jobs on a dead server end fast, so it would always have the fewest.
        """
        if job_id not in self._replicas:
            avoided = [until_s > now_s for until_s in self._avoided_until_s]
            replica = min(range(len(avoided)), key=lambda k: (avoided[k], self._jobs[k]))
            self._replicas[job_id] = replica
            self._jobs[replica] += 1
        return self._replicas[job_id]

    def turn_ended(self, replica: int, now_s: float, *, succeeded: bool) -> None:
        self._avoided_until_s[replica] = 0.0 if succeeded else now_s + AVOIDED_S

    def release(self, job_id: str) -> None:
        if (replica := self._replicas.pop(job_id, None)) is not None:
            self._jobs[replica] -= 1
