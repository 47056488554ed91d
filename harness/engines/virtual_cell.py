"""Run a cell in virtual time: a fixed set of programs, or a stream until its steady state."""

from __future__ import annotations

from collections.abc import Iterable

from harness.cells.job import Job
from harness.load.agents import AgentJobs
from harness.load.stream import ArrivingJob, with_burst
from harness.replay.steady import SteadyWindow
from harness.replay.virtual import EngineFactory, replay, replay_scenario, replay_stream
from harness.replay.window import AgentsWindow, HorizonWindow
from servers.basics.errors import CellFailed
from servers.policies.base import Oracle
from servers.policies.user_code import NeverReturned, call_limit, raised_in, traceback_in
from servers.records.done import DoneRecord


def run_virtual(job: Job, engine: EngineFactory) -> DoneRecord:
    """Return the contents of done.json. Raise CellFailed with the line of a user's policy or router
    that raised an exception or does not return."""
    roots = job.variant.user_code
    try:
        with call_limit(roots):
            return _run(job, engine)
    except NeverReturned as late:
        raise CellFailed(str(late)) from None
    except Exception as error:
        if (line := raised_in(error, roots)) is None:
            raise
        raise CellFailed(f"{line}\n{traceback_in(error, roots)}") from error


def _run(job: Job, engine: EngineFactory) -> DoneRecord:
    oracle, background = issubclass(job.variant.policy, Oracle), job.background_arrivals()
    if job.scenario_jobs is not None:
        return replay_scenario(job.scenario_jobs, engine, job.on_turn, oracle=oracle)
    if job.stream is None:
        return replay(
            job.programs,
            job.starts_s,
            job.in_flight,
            engine,
            job.on_turn,
            oracle=oracle,
            background=background,
        )
    jobs, idle, horizon = job.stream
    window: SteadyWindow | AgentsWindow | HorizonWindow
    arriving: Iterable[ArrivingJob] = jobs
    if isinstance(jobs, AgentJobs):
        window = AgentsWindow(jobs.agents, idle)
    elif horizon is not None:
        window = HorizonWindow(jobs.jobs_per_s, horizon, idle)
        arriving = with_burst(jobs, horizon.burst)
    else:
        window = SteadyWindow(jobs.jobs_per_s, idle)
        arriving = with_burst(jobs, window.burst)
    return replay_stream(
        arriving, window, engine, job.on_turn, oracle=oracle, background=background
    )
