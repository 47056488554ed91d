"""Assigns jobs to replicas.

A job and its sub-agents stay on one replica, because their KV cache is there. A new job gets the
replica with the fewest active jobs; among equals, the first.
"""

from __future__ import annotations


class Affinity:
    def __init__(self, replicas: int) -> None:
        self._active_jobs = [0] * replicas
        self._replica_of_job: dict[str, int] = {}

    def replica_of(self, job_id: str) -> int:
        if job_id not in self._replica_of_job:
            replica = self._active_jobs.index(min(self._active_jobs))
            self._replica_of_job[job_id] = replica
            self._active_jobs[replica] += 1
        return self._replica_of_job[job_id]

    def job_ended(self, job_id: str) -> None:
        """Call it when the job's root program ends, even if sub-agents are still active."""
        self._active_jobs[self._replica_of_job[job_id]] -= 1
