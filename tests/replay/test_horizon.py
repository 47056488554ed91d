"""Jobs that arrive within a horizon, compared with manual calculations and with queueing theory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cells.job import summary
from harness.load.stream import ArrivingJob, with_burst
from harness.replay.virtual import replay_stream
from harness.replay.window import HorizonWindow
from servers.basics.clock import PS_PER_S
from servers.basics.errors import CellFailed
from servers.policies.base import Costs
from servers.policies.fcfs import Fcfs
from servers.records.done import JobsInSystem, Times
from servers.records.settings import HorizonRecord
from servers.sim import Engine, Limits
from tests.lines import into
from tests.sim.worlds import profile
from traces import Program, Turn

SERVICE_S = 0.010_000_408
"""A step of one turn of 16 tokens (tests/replay/test_steady.py)."""
IDLE = Times(jct=summary([SERVICE_S]))


def arriving(starts_s: Any) -> Iterator[ArrivingJob]:
    for index, at_s in enumerate(starts_s):
        job = (Program(f"p#{index}", (Turn(16, 1),)),)
        yield ArrivingJob(index, job, round(at_s * PS_PER_S), 0)


def every(gap_s: float) -> Iterator[float]:
    return (gap_s * index for index in count())


def run(
    starts_s: Any,
    horizon_s: float,
    burst: int = 0,
    jobs_per_s: float = 10.0,
    most_jobs: int | None = None,
) -> tuple[Any, list[dict[str, Any]]]:
    turns: list[dict[str, Any]] = []
    engine = partial(Engine, Fcfs(Costs(prefill_s=float)), profile(100), Limits(max_num_seqs=1))
    horizon = HorizonRecord(seconds=horizon_s, jobs=most_jobs, burst=burst)
    window = HorizonWindow(jobs_per_s, horizon, IDLE)
    jobs = with_burst(arriving(starts_s), burst)
    return replay_stream(jobs, window, engine, into(turns)), turns


def test_all_jobs_that_arrive_before_the_horizon_are_measured_to_their_end() -> None:
    done, turns = run(every(0.1), 1.0)
    # At 0, 0.1 … 0.9 s; the one at 1 s is too late.
    assert (done.steady, done.unstable, done.finished_programs) == (True, None, 10)
    assert (done.window.first_job, done.window.jobs, done.window.finished_jobs) == (0, 10, 10)
    assert (done.window.from_s, done.window.to_s) == (0.0, 1.0)
    assert done.times_s.jct.mean == pytest.approx(SERVICE_S)
    assert done.virtual_s == pytest.approx(0.9 + SERVICE_S)
    assert len(turns) == 10


def test_jobs_that_still_run_at_the_horizon_end_after_it() -> None:
    done, _ = run([0.0, 0.0, 0.0, 0.02, 9.0], 0.025)
    assert (done.window.jobs, done.window.finished_jobs, done.finished_programs) == (4, 2, 4)
    # They take 1, 2 and 3 services, and the last one ends after the fourth.
    mean_s = (1 + 2 + 3 + 4) * SERVICE_S / 4 - 0.02 / 4
    assert done.times_s.jct.mean == pytest.approx(mean_s)
    # They find 0, 1, 2 and, after 0.02 s, 2 jobs; at 0.025 s two are left.
    assert done.jobs_in_system == JobsInSystem(mean=1.25, at_end=2)


def test_a_largest_number_of_jobs_ends_the_horizon_when_one_more_would_arrive() -> None:
    done, turns = run(every(0.1), 1.0, most_jobs=4)
    # At 0, 0.1, 0.2 and 0.3 s; the fifth would arrive at 0.4 s.
    assert (done.steady, len(turns), done.window.jobs, done.window.to_s) == (True, 4, 4, 0.4)
    assert done.window.finished_jobs == 4
    fewer, _ = run(every(0.1), 1.0, most_jobs=11)
    assert (fewer.window.jobs, fewer.window.to_s) == (10, 1.0)


def test_the_jobs_after_a_burst_are_measured() -> None:
    done, turns = run(every(0.02), 1.0, burst=5)
    assert [t["scheduled_at_s"] for t in turns[:7]] == pytest.approx([0, 0, 0, 0, 0, 0.02, 0.04])
    assert (done.window.first_job, done.window.jobs, done.window.finished_jobs) == (5, 49, 5 + 49)
    # A service takes 0.01 s, so those at 0.02 to 0.08 s wait for three, two, one and hardly any.
    waits_s = [(5 + k) * SERVICE_S - 0.02 * (k + 1) for k in range(4)]
    mean_s = SERVICE_S + sum(waits_s) / 49
    assert done.times_s.jct.mean == pytest.approx(mean_s)


def test_the_rates_that_are_sustained_after_a_burst_are_those_below_a_highest_one() -> None:
    """At a low rate the burst would be most of the jobs."""
    means = []
    for gap_s in (0.5, 0.1, 0.05, 0.02, 0.0125, 0.011):
        done, _ = run(every(gap_s), 5.0, burst=20)
        means.append(done.times_s.jct.mean)
    assert means == sorted(means)
    assert means[0] == pytest.approx(SERVICE_S)


def test_a_backlog_that_no_promise_allows_ends_the_cell_early() -> None:
    # At 1,000 jobs/s, 500 jobs arrive in 50 idle JCTs; ten arrive in the time of each.
    done, _ = run(every(0.001), 3600.0, jobs_per_s=1000.0)
    assert done.unstable == "551 jobs in the system, more than 550"
    assert not done.steady
    assert done.window.jobs < 700
    assert done.window.finished_jobs is None


def test_a_horizon_in_which_no_job_arrives_fails_the_cell() -> None:
    with pytest.raises(CellFailed, match="no job arrives within the horizon"):
        run([2.0], 1.0)


def test_the_background_ends_with_the_last_job() -> None:
    background = ((Program(f"b#{k}", (Turn(16, 1),)), k * PS_PER_S // 20) for k in count())
    engine = partial(Engine, Fcfs(Costs(prefill_s=float)), profile(100), Limits(max_num_seqs=1))
    window = HorizonWindow(10.0, HorizonRecord(seconds=1.0), IDLE)
    turns: list[dict[str, Any]] = []
    done = replay_stream(arriving(every(0.1)), window, engine, into(turns), background=background)
    assert (done.window.jobs, done.steady) == (10, True)
    assert done.background.until_s < 1.0


@given(st.lists(st.floats(0, 0.05), min_size=1, max_size=40), st.floats(0.01, 1.0))
def test_the_mean_number_of_jobs_in_the_system_is_their_rate_times_the_mean_jct(
    gaps_s: list[float], horizon_s: float
) -> None:
    """Little's law holds exactly from an empty system to an empty one."""
    starts_s = np.cumsum([0.0, *gaps_s]).tolist()
    done, turns = run([*starts_s, 99.0], horizon_s)
    inside = [at for at in starts_s if round(at * PS_PER_S) < round(horizon_s * PS_PER_S)]
    assert done.window.jobs == len(inside)
    ends = sorted(t["finished_at_s"] for t in turns)
    area = sum(ends) - sum(inside)
    assert done.times_s.jct.mean * len(inside) == pytest.approx(area, abs=1e-6)


def test_the_mean_over_long_horizons_is_that_of_an_md1_queue() -> None:
    """At a load of 0.5 jobs wait 0.5 / (2 · 0.5) = half a service (Pollaczek and Khinchine)."""
    per_s = 0.5 / SERVICE_S
    means = []
    for seed in range(4):
        gaps_s = np.random.default_rng(seed).standard_exponential(4_000) / per_s
        done, _ = run(np.cumsum(gaps_s).tolist(), 3_000 / per_s, jobs_per_s=per_s)
        means.append(done.times_s.jct.mean)
    assert fmean(means) / SERVICE_S == pytest.approx(1.5, rel=0.05)
