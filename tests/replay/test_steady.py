"""The window of a stream of jobs, compared with manual calculations."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest

from harness.cells.job import summary
from harness.load.stream import ArrivingJob
from harness.replay.steady import SteadyWindow
from harness.replay.virtual import replay_stream
from servers.basics.clock import PS_PER_S
from servers.policies.base import Costs
from servers.policies.fcfs import Fcfs
from servers.records.done import DoneRecord, JobsInSystem, Times, WindowRecord
from servers.sim import Engine, Limits
from tests.lines import into
from tests.sentences import mentions
from tests.sim.worlds import profile
from traces import Fork, Program, SharedPrefix, Turn

IDLE = Times(jct=summary([10.0]))


def judged(jobs_per_s: float, jct_s: Callable[[int], float]) -> tuple[SteadyWindow, int]:
    """Let job j arrive at j ÷ rate and take `jct_s(j)`. Return the window when it is over, and the
    number of jobs that have arrived."""
    window = SteadyWindow(jobs_per_s, IDLE)
    running: list[tuple[int, int]] = []
    for job in count():
        at_ps = round(job / jobs_per_s * PS_PER_S)
        while running and running[0][0] <= at_ps and not window.over:
            end_ps, ended = heapq.heappop(running)
            window.job_ended(ended, end_ps)
        if not job:
            window.next_arrival(at_ps, 0)
        if window.over:
            return window, job
        heapq.heappush(running, (at_ps + round(jct_s(job) * PS_PER_S), job))
        window.next_arrival(round((job + 1) / jobs_per_s * PS_PER_S), 0)
        if window.over:
            return window, job + 1
    raise AssertionError


def test_the_burst_is_followed_by_a_recovery_and_a_window_of_at_least_200_jobs() -> None:
    # 1 job/s · 10 s: 2 · 10 + 25 = 45 jobs together; 10 · 10 = 100 jobs would be fewer than 200.
    window = SteadyWindow(1.0, IDLE)
    assert (window.burst, window.first_job, window.jobs) == (45, 245, 200)
    assert window.most_in_system == 150


def test_at_a_high_rate_they_last_10_idle_jcts() -> None:
    window = SteadyWindow(10.0, IDLE)
    assert (window.burst, window.first_job, window.jobs) == (225, 1225, 1000)
    assert window.most_in_system == 1050


def recorded(window: SteadyWindow) -> Any:
    done = DoneRecord(finished_programs=0, failed_turns=0)
    window.record_in(done)
    return done


def test_a_constant_number_of_jobs_in_the_system_is_accepted_when_all_measured_jobs_ended() -> None:
    window, arrived = judged(1.0, lambda _: 10.0)
    # Jobs 245 … 444; the last arrives at 444 s and ends at 454 s, before job 454 arrives.
    assert arrived == 454
    found = recorded(window)
    assert (found.steady, found.unstable) == (True, None)
    assert found.window == WindowRecord(
        first_job=245,
        jobs=200,
        from_s=245.0,
        to_s=445.0,
        finished_jobs=200,  # those that arrived at 235 … 434 s
        shared_prefix_tokens=0,
    )
    assert found.times_s.jct == summary([10.0])
    # A job finds the nine that arrived before it; the tenth has just ended.
    assert found.jobs_in_system == JobsInSystem(mean=9.0, at_end=9, growth=0.0)


def test_a_window_shorter_than_five_jcts_doubles() -> None:
    # 200 jobs arrive in 20,000 s, less than 5 · 4,500 s; 400 take 40,000 s.
    window, _ = judged(0.01, lambda _: 4500.0)
    assert (window.unstable, window.jobs) == (None, 400)


def test_a_window_in_which_jobs_get_stuck_doubles() -> None:
    # Jobs 410 … 434 end after 445 s instead of within it: 175 of 200 finish, less than 90%.
    window, _ = judged(1.0, lambda job: 495.0 - job if 410 <= job < 445 else 10.0)
    assert (window.unstable, window.jobs) == (None, 400)
    assert recorded(window).window.finished_jobs == 400


def test_a_backlog_of_ten_idle_jcts_ends_the_cell_at_once() -> None:
    # Job j ends at 1.25 j + 10 s, so 0.8 jobs leave per second. When job 711 has arrived, at
    # 711 s, 712 arrived and those up to (711 − 10) ÷ 1.25 = 560.8 have ended: 712 − 561 = 151.
    window, arrived = judged(1.0, lambda job: 10.0 + 0.25 * job)
    assert window.unstable == "151 jobs in the system, more than 150"
    assert arrived == 712
    found = recorded(window)
    assert not found.steady
    # The window doubled once, to jobs 245 … 644, and only jobs up to 560 have ended.
    assert (found.window.jobs, found.window.to_s) == (400, 645.0)
    assert found.times_s.jct.mean == pytest.approx(10 + 0.25 * (245 + 560) / 2)


def test_a_window_that_grows_even_at_eight_times_its_length_is_unstable() -> None:
    # At 10 jobs/s job 1225 + j ends at 0.1 j ÷ 0.89 + 132.5 s: of 100 arriving jobs 89 leave.
    slower = 0.1 * 0.11 / 0.89
    window, _ = judged(10.0, lambda job: 10.0 + slower * min(max(job - 1225, 0), 7200))
    assert mentions(window.unstable or "", "11% of the arrivals", "8,000 jobs")


# With an engine ------------------------------------------------------------------------------

SERVICE_S = 0.010_000_408
"""A step of one turn of 16 tokens: 1 + 9 ms, and 3 ns for each of 16 · 17 ÷ 2 = 136 pairs."""


def stream(jobs_per_s: float, *members: Program) -> Iterator[ArrivingJob]:
    """Yield copies of a job at constant intervals."""
    for index in count():
        job = tuple(
            Program(
                f"{program.id}#{index}",
                program.turns,
                program.prefix,
                program.fork and Fork(f"{members[0].id}#{index}", 0, program.fork.delay_s),
            )
            for program in members
        )
        yield ArrivingJob(index, job, round((index + 1) / jobs_per_s * PS_PER_S), 0)


def run(
    jobs_per_s: float, *members: Program, idle_s: float = SERVICE_S
) -> tuple[Any, list[dict[str, Any]]]:
    turns: list[dict[str, Any]] = []
    engine = partial(Engine, Fcfs(Costs(prefill_s=float)), profile(100), Limits(max_num_seqs=1))
    window = SteadyWindow(jobs_per_s, Times(jct=summary([idle_s])))
    return replay_stream(stream(jobs_per_s, *members), window, engine, into(turns)), turns


ONE_TURN = Program("p", (Turn(16, 1),))


def test_below_the_capacity_each_job_takes_its_service_time() -> None:
    done, turns = run(50.0, ONE_TURN)
    assert done.steady
    assert done.times_s.jct.mean == pytest.approx(SERVICE_S, rel=1e-9)
    assert (done.window.from_s, done.window.to_s) == (4.54, 8.54)
    assert done.window.finished_jobs == 200
    # 25 + 1 jobs of the burst and 200 + 200 others: job 426 arrives at the end of the window.
    assert [turn["job_index"] for turn in turns] == list(range(427))


def test_above_the_capacity_the_cell_ends_when_too_many_jobs_are_in_the_system() -> None:
    # Two jobs arrive per service time: at the end of service k, 2 k + 1 jobs have arrived and k
    # have ended. Little's law: 10 · 200 · 0.01 + 50 = 70 jobs.
    done, turns = run(200.0, ONE_TURN)
    assert done.unstable == "71 jobs in the system, more than 70"
    assert done.jobs_in_system.at_end == 71
    assert len(turns) == 71  # the turn that had been admitted when the last job arrived ends too
    assert done.window.to_s is None


def test_a_job_ends_with_its_last_sub_agent() -> None:
    # The root takes one service time, its sub-agent starts 0.5 s later and takes another.
    agent = Program("p/agent", (Turn(16, 1),), fork=Fork("p", 0, 0.5))
    done, turns = run(1.0, ONE_TURN, agent)
    assert done.times_s.jct.mean == pytest.approx(0.5 + 2 * SERVICE_S, rel=1e-9)
    assert done.window.finished_jobs == 200
    by_job = [turn["job_index"] for turn in turns if turn["program_id"].startswith("p/agent")]
    assert by_job == list(range(425))


def test_shared_prefixes_of_measured_jobs_are_counted() -> None:
    shared = Program("p", (Turn(16, 1),), SharedPrefix("system", 7))
    done, _ = run(50.0, shared)
    assert done.window.shared_prefix_tokens == 200 * 7
