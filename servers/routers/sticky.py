"""All turns of a job go to the replica that served its first one (session affinity).

A new job goes to the replica with the fewest jobs; of those with equally many, to the one with the
fewest turns. So the KV of a program is always where its next turn goes, sub-agents find what they
share with the program that started them, and the load follows the jobs, however long they are. A
job ends when all of its programs that were seen have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from servers.basics.compiled_core import mypyc_attr
from servers.routers.base import Replica, RoutedTurn, Router, usable


@mypyc_attr(allow_interpreted_subclasses=True)
class Sticky(Router):
    """A job stays on the replica that had the fewest jobs when it arrived."""

    name = "sticky"
    source = "session affinity, as in vLLM's production stack (--routing-logic session)"

    def __init__(self, replicas: Sequence[Replica]) -> None:
        super().__init__(replicas)
        self._jobs = [0] * len(replicas)
        """Number of jobs on each replica."""
        self._home: dict[str, int] = {}
        self._programs: dict[str, set[str]] = {}
        """By job: its programs that have not ended."""
        self._job_of: dict[str, str] = {}

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        job_id = self._job_of.get(turn.program_id, turn.job_id)
        home = self._home.get(job_id)
        if home is None:
            home = self._fewest_jobs()
            self._home[job_id] = home
            self._jobs[home] += 1
            self._programs[job_id] = set()
        self._programs[job_id].add(turn.program_id)
        self._job_of[turn.program_id] = job_id
        return home

    def _fewest_jobs(self) -> int:
        """Return the replica with the fewest jobs; of several, the one with the fewest turns."""
        replicas = usable(self.replicas)
        best, fewest = replicas[0], self._jobs[replicas[0].index]
        for replica in replicas:
            jobs = self._jobs[replica.index]
            if jobs < fewest or (jobs == fewest and replica.turns < best.turns):
                best, fewest = replica, jobs
        return best.index

    def program_ended(self, program_id: str, now_s: float) -> None:
        job_id = self._job_of.pop(program_id, None)
        if job_id is None:
            return
        self._programs[job_id].remove(program_id)
        if not self._programs[job_id]:
            del self._programs[job_id]
            self._jobs[self._home.pop(job_id)] -= 1
