"""Agents in flight, compared with manual calculations and with queueing theory."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from math import factorial
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from harness.cells.job import summary
from harness.load.agents import AgentJobs, from_turn
from harness.load.stream import ArrivingJob, DrawnJobs
from harness.load.workload import Workload
from harness.replay.virtual import replay_stream
from harness.replay.window import AgentsWindow
from servers.basics.clock import PS_PER_S
from servers.policies.base import Costs
from servers.policies.fcfs import Fcfs
from servers.records.done import DoneRecord, Times
from servers.sim import Engine, Limits
from tests.lines import into
from tests.sim.worlds import profile
from traces import Fork, Program, SharedPrefix, Turn

IDLE = Times(jct=summary([10.0]))
SERVICE_S = 0.010_000_408
"""A step of one turn of 16 tokens (tests/replay/test_steady.py)."""


def judged(agents: int, jct_s: Any) -> AgentsWindow:
    """Let each agent start a job as soon as its last one ends; job j takes `jct_s(j)`."""
    window = AgentsWindow(agents, IDLE)
    running = [(round(jct_s(job) * PS_PER_S), job) for job in range(agents)]
    for _ in range(agents):
        window.job_chosen(0, 0, 0)
    for job in count(agents):
        end_ps, ended = min(running)
        running.remove((end_ps, ended))
        window.job_ended(ended, end_ps)
        if window.over:
            return window
        window.job_chosen(end_ps, end_ps, 0)
        if window.over:
            return window
        running.append((end_ps + round(jct_s(job) * PS_PER_S), job))
    raise AssertionError


def recorded(window: AgentsWindow) -> Any:
    done = DoneRecord(finished_programs=0, failed_turns=0)
    window.record_in(done)
    return done


def test_the_first_jobs_of_the_agents_and_100_more_or_two_for_each_agent_settle() -> None:
    few, many = AgentsWindow(4, IDLE), AgentsWindow(100, IDLE)
    assert (few.first_job, few.jobs) == (104, 200)
    assert (many.first_job, many.jobs) == (300, 500)


def test_a_constant_jct_is_accepted_when_all_measured_jobs_have_ended() -> None:
    done = recorded(judged(4, lambda _: 10.0))
    # Four jobs each 10 s: job 104 starts at 260 s, job 304 at 760 s.
    assert (done.steady, done.window.first_job, done.window.jobs) == (True, 104, 200)
    assert (done.window.from_s, done.window.to_s) == (260.0, 760.0)
    assert done.window.finished_jobs == 200
    assert done.times_s.jct == summary([10.0])


@pytest.mark.parametrize(("growth", "word"), [(0.002, "rises"), (-0.002, "falls")])
def test_a_jct_that_drifts_either_way_even_in_eight_windows_is_unstable(
    growth: float, word: str
) -> None:
    window = judged(4, lambda job: 100.0 * math.exp(growth * job))
    assert window.jobs == 1600
    assert window.unstable is not None
    assert window.unstable.startswith(f"the mean JCT {word} by ")
    assert window.unstable.endswith(" in a window of 1,600 jobs")


def test_a_drift_that_ends_within_the_first_window_doubles_it() -> None:
    window = judged(4, lambda job: max(20.0 - 0.1 * (job - 104), 10.0) if job >= 104 else 20.0)
    # The halves of 200 jobs differ by 5 s of 12.5 s; those of 400 by 2.5 s of 11.25 s; those of 800
    # by 1.26 s of 10.6 s, more than three deviations; those of 1,600 by 6%.
    assert (window.unstable, window.jobs) == (None, 1600)


def crossing(agents: int, seed: int) -> float:
    """Let JCTs be exponential, check Little's law, and return its term for the jobs that cross an
    end of the window, as a share of the sum of JCTs."""
    jcts_s = np.random.default_rng(seed).exponential(10.0, 1000).tolist()
    done = recorded(judged(agents, jcts_s.__getitem__))
    begin_ps, end_ps = (round(at * PS_PER_S) for at in (done.window.from_s, done.window.to_s))
    free_ps, remaining_ps = [0] * agents, 0
    for jct_s in jcts_s:
        start_ps = heapq.heappop(free_ps)
        heapq.heappush(free_ps, ended_ps := start_ps + round(jct_s * PS_PER_S))
        for at_ps, sign in ((begin_ps, 1), (end_ps, -1)):
            if start_ps < at_ps < ended_ps:
                remaining_ps += sign * (ended_ps - at_ps)
    jct_ps = done.window.jobs * done.times_s.jct.mean * PS_PER_S
    assert jct_ps + remaining_ps == pytest.approx(agents * (end_ps - begin_ps), rel=1e-9)
    return remaining_ps / jct_ps


def test_littles_law_is_exact_with_the_jobs_that_cross_an_end_of_the_window() -> None:
    """N · time = Σ JCT + what remains at the begin of the jobs that run then − the same at the end.
    Each of the two is a sum over N − 1 jobs of times that are exponential with the mean of the JCT,
    so their difference ÷ Σ JCT has a deviation of √(2 (N − 1)) ÷ 200 jobs = 3.1% and no mean."""
    found = [crossing(20, seed) for seed in range(100)]
    assert np.std(found) == pytest.approx(math.sqrt(2 * 19) / 200, rel=0.2)
    assert abs(fmean(found)) < 3 * np.std(found) / 10


# With an engine ------------------------------------------------------------------------------


def one_turn(think_s: float = 0.0, tokens: int = 1) -> Iterator[ArrivingJob]:
    for index in count():
        job = (Program(f"p#{index}", (Turn(16, tokens),)),)
        yield ArrivingJob(index, job, round(think_s * PS_PER_S) if index else 0, 0)


def run(agents: int, jobs: Iterator[ArrivingJob]) -> tuple[Any, list[dict[str, Any]]]:
    turns: list[dict[str, Any]] = []
    engine = partial(Engine, Fcfs(Costs(prefill_s=float)), profile(100), Limits(max_num_seqs=1))
    return replay_stream(jobs, AgentsWindow(agents, IDLE), engine, into(turns)), turns


@pytest.mark.parametrize("agents", [1, 2, 7])
def test_without_think_time_each_job_waits_for_those_of_all_other_agents(agents: int) -> None:
    done, turns = run(agents, one_turn())
    assert done.steady
    assert done.times_s.jct.mean == pytest.approx(agents * SERVICE_S, rel=1e-9)
    assert done.times_s.ttft.percentile(99) == pytest.approx(agents * SERVICE_S, rel=1e-9)
    assert done.times_s.first_ttft == done.times_s.ttft
    assert done.times_s.tpot is None
    # Little's law: as many jobs in the system as there are agents.
    per_s = done.window.finished_jobs / (done.window.to_s - done.window.from_s)
    assert per_s * done.times_s.jct.mean == pytest.approx(agents, rel=1e-6)
    most = max(
        sum(t["scheduled_at_s"] <= at < t["finished_at_s"] for t in turns)
        for at in (t["scheduled_at_s"] for t in turns[:50])
    )
    assert most == agents


def test_an_agent_that_ends_its_first_job_before_others_start_takes_none_of_their_jobs() -> None:
    def jobs() -> Iterator[ArrivingJob]:
        for index in count():
            at_s = float(index) if index < 3 else 0.5  # starts of three agents, then think times
            job = (Program(f"p#{index}", (Turn(16, 1),)),)
            yield ArrivingJob(index, job, round(at_s * PS_PER_S), 0)

    _, turns = run(3, jobs())
    starts_s = {turn["program_id"]: turn["scheduled_at_s"] for turn in turns}
    assert [starts_s[f"p#{index}"] for index in range(3)] == [0.0, 1.0, 2.0]
    # The first agent is free at 0.01 s, thinks for 0.5 s, and so on until the second one starts.
    assert starts_s["p#3"] == pytest.approx(0.5 + SERVICE_S)
    assert starts_s["p#4"] == pytest.approx(1.0 + 2 * SERVICE_S, abs=1e-3)


def test_a_think_time_longer_than_all_other_jobs_leaves_the_machine_idle() -> None:
    done, _ = run(1, one_turn(think_s=1.0))
    assert done.times_s.jct.mean == pytest.approx(SERVICE_S, rel=1e-9)
    per_s = done.window.finished_jobs / (done.window.to_s - done.window.from_s)
    assert per_s == pytest.approx(1 / (1 + SERVICE_S), rel=1e-6)


def test_exponential_service_and_think_times_have_the_jct_of_the_machine_repairman() -> None:
    """M/M/1 with N customers: p0 = 1 ÷ Σ N! ÷ (N − k)! ρ^k, X = (1 − p0) ÷ S, R = N ÷ X − Z. Turns
    have geometrically many tokens of equal duration, which is close to exponential."""
    agents, mean_tokens, think_s = 4, 50, 1.0
    found, service_s = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        tokens = rng.geometric(1 / mean_tokens, 2000)
        think_ps = (rng.exponential(think_s, 2000) * PS_PER_S).round().astype(int)
        think_ps[:agents] = 0  # they start at once
        jobs = (
            ArrivingJob(k, (Program(f"p#{k}", (Turn(16, int(tokens[k])),)),), int(think_ps[k]), 0)
            for k in count()
        )
        done, turns = run(agents, jobs)
        found.append(done.times_s.jct.mean)
        service_s += [t["finished_at_s"] - t["sent_at_s"] - t["queue_s"] for t in turns]
    mean_s = fmean(service_s)
    rho = mean_s / think_s
    p0 = 1 / sum(factorial(agents) / factorial(agents - k) * rho**k for k in range(agents + 1))
    expected_s = agents * mean_s / (1 - p0) - think_s
    assert fmean(found) == pytest.approx(expected_s, rel=0.03)


# Jobs ----------------------------------------------------------------------------------------

TURNS = (
    Turn(100, 10, tools=("a",), tool_gap_s=1.0),
    Turn(200, 10, kept_tokens=110, tools=("a",), tool_gap_s=2.0),
    Turn(300, 10, kept_tokens=210, tools=("a",), tool_gap_s=3.0),
    Turn(400, 10, kept_tokens=310),
)
ROOT = Program("r", TURNS, prefix=SharedPrefix("system", 50))
EARLY = Program("r/early", (Turn(10, 1),), fork=Fork("r", 0, joined_before_turn=1))
NESTED = Program("r/early/n", (Turn(10, 1),), fork=Fork("r/early", 0))
LATE = Program("r/late", (Turn(10, 1),), fork=Fork("r", 2, 0.5, joined_before_turn=3))


def test_a_job_from_its_third_turn_sends_the_whole_prompt_and_only_later_sub_agents() -> None:
    root, late = from_turn((ROOT, EARLY, NESTED, LATE), 2)
    assert [turn.prompt_tokens for turn in root.turns] == [300, 400]
    assert [turn.kept_tokens for turn in root.turns] == [0, 310]
    assert root.prefix == ROOT.prefix
    assert late.fork == Fork("r", 0, 0.5, joined_before_turn=1)


def test_a_job_from_its_first_turn_is_the_whole_job_whatever_the_order_of_its_sub_agents() -> None:
    assert from_turn((ROOT, NESTED, LATE, EARLY), 0) == (ROOT, LATE, EARLY, NESTED)


def workload() -> Workload:
    programs = [
        Program(f"p{k}", tuple(Turn(100 * t + 100, 10, kept_tokens=100 * t) for t in range(10)))
        for k in range(30)
    ]
    return Workload("w", tuple(programs), "sha", ())


def first(agents: int, jobs: int, think_s: float = 0.0, seed: int = 1) -> list[ArrivingJob]:
    drawn = AgentJobs(DrawnJobs(workload(), seed), agents, think_s, idle_jct_s=60.0)
    return list(islice(drawn, jobs))


def test_agents_begin_in_the_middle_of_their_first_job_at_different_times() -> None:
    jobs = first(20, 25)
    starts_s = [job.at_ps / PS_PER_S for job in jobs[:20]]
    assert starts_s == sorted(starts_s)
    assert 0 <= starts_s[0] < starts_s[-1] <= 60
    lengths = [len(job.members[0].turns) for job in jobs]
    assert len(set(lengths[:20])) > 5
    assert lengths[20:] == [10] * 5


def test_a_seed_draws_the_same_jobs_for_every_number_of_agents_and_others_for_another_seed() -> (
    None
):
    names = [[job.members[0].id for job in first(agents, 60)] for agents in (1, 8, 20)]
    assert names[0] == names[1] == names[2]
    assert names[0] != [job.members[0].id for job in first(8, 60, seed=2)]


def test_think_times_are_exponential_with_their_mean() -> None:
    think_s = [job.at_ps / PS_PER_S for job in first(2, 4000, think_s=30.0)[2:]]
    assert fmean(think_s) == pytest.approx(30, rel=0.05)
    assert np.std(think_s) == pytest.approx(30, rel=0.07)
    assert all(job.at_ps == 0 for job in first(2, 50)[2:])
