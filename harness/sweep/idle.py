"""Measure the times on an idle machine, on which each job of a seed runs alone.

In: a plan and a seed. Out: means and percentiles. The mean JCT, T0, sets the length of the windows
of all cells with that seed. Engine and machine are the plan's, without offload; the policy
is fcfs.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from harness.cells.job import Job, TurnTimes
from harness.load.arrivals import roots
from harness.load.stream import DrawnJobs
from harness.sweep.plan import SweepPlan
from servers.policies.fcfs import Fcfs
from servers.records.done import Times
from servers.records.turns import TurnRecord
from servers.variants import variant

IDLE_JOBS = 200
"""Jobs that run alone, or all of the workload if it has fewer."""


def idle_times(plan: SweepPlan, seed: int, folder: Path) -> Times:
    """Run the first jobs of a seed one after another."""
    starts_s: dict[str, float] = {}
    ends_s: dict[str, float] = {}
    turns = TurnTimes()

    def on_turn(record: TurnRecord) -> None:
        starts_s.setdefault(record.job_id, record.scheduled_at_s)
        if record.finished_at_s is not None:
            ends_s[record.job_id] = max(record.finished_at_s, ends_s.get(record.job_id, 0.0))
        turns.add(record, 0)

    workload = plan.workload
    jobs = IDLE_JOBS
    if workload.fresh is None:
        jobs = min(jobs, len(roots(workload.programs)))
    fitting = (members for members in DrawnJobs(workload, seed) if members is not None)
    job = Job(
        name="idle",
        variant=variant(Fcfs.name),
        seed=seed,
        programs=[program for members in islice(fitting, jobs) for program in members],
        starts_s=None,
        in_flight=1,
        folder=folder,
        on_turn=on_turn,
    )
    plan.engine.run(job)
    jct_s = [end_s - starts_s[job_id] for job_id, end_s in ends_s.items()]
    return turns.with_jcts(jct_s, 0, 1)
