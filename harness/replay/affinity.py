"""Which replica serves a job: all its turns and sub-agents go where its KV is.

A job goes to the replica with the fewest jobs under way when it starts; of several, the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.load.arrivals import root_ids
from traces import Program


class Affinity:
    def __init__(self, programs: Sequence[Program], replicas: int) -> None:
        self._job_of = root_ids(programs)
        self._under_way = [0] * replicas
        self._replica_of_job: dict[str, int] = {}

    def replica_of(self, program: Program) -> int:
        job = self._job_of[program.id]
        if job not in self._replica_of_job:
            replica = self._under_way.index(min(self._under_way))
            self._replica_of_job[job] = replica
            self._under_way[replica] += 1
        return self._replica_of_job[job]

    def ended(self, program: Program) -> None:
        """A job is over with its root program; sub-agents that outlive it count no more."""
        if self._job_of[program.id] == program.id:
            self._under_way[self._replica_of_job[program.id]] -= 1
