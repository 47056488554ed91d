"""Requests beside the jobs in virtual time: served by the same engine, and no jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cells.job import summary
from harness.load.arrivals import Arrivals
from harness.load.background import Background
from harness.load.stream import DrawnJobs, JobStream
from harness.load.workload import Workload
from harness.replay.steady import SteadyWindow
from harness.replay.virtual import replay, replay_stream
from servers.basics.clock import PS_PER_S
from servers.policies.base import Costs
from servers.policies.fcfs import Fcfs
from servers.records.done import BackgroundEnd, DoneRecord, Times
from servers.sim import Engine, Limits
from tests.lines import into
from tests.sim.worlds import profile
from traces import Program, Turn

SERVICE_S = 0.010_000_408
"""A step of one turn of 16 tokens: 1 + 9 ms, and 3 ns for each of 16 · 17 ÷ 2 = 136 pairs."""
ENGINE = partial(Engine, Fcfs(Costs(prefill_s=float)), profile(100), Limits(max_num_seqs=1))
Line = dict[str, Any]


def one_turn(id: str) -> Program:
    return Program(id, (Turn(16, 1),))


def at(*times_s: float) -> Iterator[tuple[Program, int]]:
    """Yield requests at these times, and after them one a day without end."""
    later_s = (times_s[-1] + 86_400.0 * day for day in count(1))
    for number, time_s in enumerate(chain(times_s, later_s)):
        yield one_turn(f"background/{number}"), round(time_s * PS_PER_S)


def run(
    jobs: Sequence[Program],
    starts_s: Sequence[float] | None,
    in_flight: int | None,
    background: Iterable[tuple[Program, int]],
) -> tuple[DoneRecord, list[Line]]:
    turns: list[Line] = []
    done = replay(jobs, starts_s, in_flight, ENGINE, into(turns), background=background)
    return done, turns


def test_jobs_and_requests_wait_in_one_queue() -> None:
    """The server takes one turn of 10 ms at a time: the request at 1 s first, then the job of
    1.001 s, then the request of 1.002 s. The job ends after two services, and with it the cell."""
    done, turns = run([one_turn("job")], [1.001], None, at(1.0, 1.002))
    assert [(turn["program_id"], turn.get("background")) for turn in turns] == [
        ("background/0", True), ("job", None),
    ]  # fmt: skip
    assert turns[1]["finished_at_s"] == pytest.approx(1.0 + 2 * SERVICE_S, abs=1e-9)
    assert turns[1]["queue_s"] == pytest.approx(SERVICE_S - 0.001, abs=1e-9)
    assert (done.finished_programs, done.failed_turns) == (1, 0)
    assert done.background == BackgroundEnd(until_s=done.virtual_s, unfinished=[(1.002, None)])


def test_the_cell_ends_with_its_last_job_in_a_closed_loop_too() -> None:
    jobs = [replace(one_turn("a"), turns=(Turn(16, 1, tool_gap_s=5.0), Turn(32, 1))), one_turn("b")]
    done, turns = run(jobs, None, 1, at(2.0, 100.0))
    assert [turn["program_id"] for turn in turns] == ["a", "background/0", "a", "b"]
    assert done.finished_programs == 2
    assert done.virtual_s == pytest.approx(5.0, abs=0.1)
    assert done.background.unfinished == []


def test_without_a_background_nothing_is_recorded_about_one() -> None:
    done, turns = run([one_turn("job")], [1.0], None, ())
    assert done.background is None
    assert "background" not in turns[0]


GAPS_S = st.lists(st.floats(0.001, 2.0), min_size=1, max_size=12)


@given(GAPS_S, GAPS_S, st.integers(1, 3))
def test_a_background_moves_no_arrival_of_a_job(
    jobs_s: list[float], requests_s: list[float], turns: int
) -> None:
    jobs = [
        Program(f"j{k}", tuple(Turn(16 * (t + 1), 1, tool_gap_s=0.1) for t in range(turns)))
        for k in range(len(jobs_s))
    ]
    starts_s = [sum(jobs_s[: k + 1]) for k in range(len(jobs_s))]
    requests = at(*(sum(requests_s[: k + 1]) for k in range(len(requests_s))))
    _, alone = run(jobs, starts_s, None, ())
    _, beside = run(jobs, starts_s, None, requests)

    def first_turns(lines: list[Line]) -> dict[str, float]:
        return {line["program_id"]: line["scheduled_at_s"] for line in lines
                if not line["turn"] and "background" not in line}  # fmt: skip

    assert first_turns(beside) == first_turns(alone)
    assert len(first_turns(alone)) == len(jobs)


def test_a_stream_has_the_same_jobs_and_windows_beside_a_background() -> None:
    """At 20 jobs/s and 10 requests/s the server, which serves 100 turns/s, is busy for 30%. The
    window counts jobs only: 26 of the burst, 200 after it, and 200 that are measured."""
    jobs = Workload("w", tuple(one_turn(f"j{k}") for k in range(5)), "", ())
    idle = Times(jct=summary([SERVICE_S]))
    seen = []
    for requests_per_s in (None, 10.0):
        turns: list[Line] = []
        background: Iterable[tuple[Program, int]] = ()
        if requests_per_s is not None:
            requests = (one_turn("background/r"),)
            background = Background("b", requests, requests_per_s, "").arrivals(1)
        stream = JobStream(DrawnJobs(jobs, 1), Arrivals("poisson"), 20.0)
        window = SteadyWindow(20.0, idle)
        done = replay_stream(stream, window, ENGINE, into(turns), background=background)
        own = [line for line in turns if "background" not in line]
        seen.append(sorted((t["job_index"], t["program_id"], t["scheduled_at_s"]) for t in own))
        assert done.steady
        assert done.finished_programs == len(own)
        assert done.window.jobs == 200
        if requests_per_s is not None:
            per_s = (len(turns) - len(own)) / done.virtual_s
            assert per_s == pytest.approx(10.0, rel=0.25)
    assert seen[1][:425] == seen[0][:425]
