"""The rules of AgentX: where sessions start, the warm-up, the window and the caps of idle time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain, count, islice

import pytest

from harness.load.scenario import SCENARIOS, ScenarioJob, ScenarioJobs, resumed, sent_at_s
from harness.load.stream import DrawnJobs
from harness.load.workload import Workload
from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from harness.replay.scenario import ScenarioSchedule
from harness.replay.schedule import ActiveProgram
from harness.replay.virtual import replay_scenario
from servers.basics.clock import PS_PER_S
from servers.basics.errors import CellFailed
from servers.policies.base import Costs
from servers.policies.fcfs import Fcfs
from servers.records.done import DoneRecord
from servers.records.settings import ScenarioRecord
from servers.records.turns import TurnRecord
from servers.sim import Engine, Limits
from tests.lines import Line, into
from tests.live import simulated_time
from tests.live.server import Server, serving
from tests.sim.worlds import profile
from traces import Fork, Program, SharedPrefix, Turn

RULES = ScenarioRecord(name="test", window_s=100, start=(0.5, 0.5), warm_up_requests=0)


def session(id: str, gaps_s: Sequence[float], fork: Fork | None = None) -> Program:
    """A program of turns that take a second when they are recorded (50 output tokens), each with
    100 prompt tokens more than the context before."""
    gaps = (*gaps_s, 0.0)
    turns = [
        Turn(100 + 150 * i, 50, 150 * i, ("ls",), tool_gap_s=gap_s) for i, gap_s in enumerate(gaps)
    ]
    return Program(id, tuple(turns), fork=fork)


ROOT = session("p", (9, 9, 9))
"""Its requests are at 0, 10, 20 and 30 s."""

# Start points -------------------------------------------------------------------------------------


def test_a_session_starts_with_the_last_request_before_its_start_point() -> None:
    # t* is at 15 s. The request at 10 s is the warm-up, and the next one is due 5 s after t*.
    (rest,), warm = resumed((ROOT,), 0.5, 0)
    assert warm == {"p": 1}
    first, *others = rest.turns
    assert (first.prompt_tokens, first.kept_tokens, first.output_tokens) == (250, 0, 1)
    assert first.tool_gap_s == 5
    # Its answer has one token of the 50, so the next prompt repeats 251 tokens instead of 300.
    assert [turn.kept_tokens for turn in others] == [251, 450]
    assert [turn.output_tokens for turn in others] == [50, 50]


def test_further_warm_up_requests_follow_without_gaps_and_keep_the_last_request() -> None:
    (rest,), warm = resumed((ROOT,), 0.5, 10)
    assert warm == {"p": 2}
    assert [turn.output_tokens for turn in rest.turns] == [1, 1, 50]
    assert [turn.tool_gap_s for turn in rest.turns[:2]] == [0, 9]
    assert [turn.kept_tokens for turn in rest.turns] == [0, 251, 401]


def test_a_session_that_starts_at_its_beginning_has_nothing_to_warm() -> None:
    (rest,), warm = resumed((ROOT,), 0.0, 0)
    assert (rest.turns, warm) == (ROOT.turns, {"p": 0})


def test_sub_agents_are_ended_under_way_or_to_come_at_the_start_point() -> None:
    ended = session("ended", (1,), Fork("p", 0, joined_before_turn=1))  # from 1 to 4 s
    live = session("live", (4, 4), Fork("p", 1, joined_before_turn=2))
    later = session("later", (1,), Fork("p", 2))
    members = (ROOT, ended, live, later)
    # The root: 0 s; 13 s, since `ended` ends at 4 s; 37 s, since `live` is at 14, 19 and 24 s.
    times = sent_at_s(members)
    assert times["p"] == [0, 13, 34, 44]
    assert times["live"] == [14, 19, 24]
    assert times["later"] == [35, 37]
    # t* is at 22 s: the root waits for `live`, whose last request is due 2 s later.
    rest, warm = resumed(members, 0.5, 0)
    by_id = {program.id: program for program in rest}
    assert warm == {"p": 1, "live": 1, "later": 0}
    assert [len(program.turns) for program in rest] == [3, 2, 2]
    assert by_id["p"].turns[0].tool_gap_s == 9  # after `live`, as recorded
    assert by_id["live"].turns[0].tool_gap_s == 2
    assert by_id["live"].fork == Fork("p", 0, joined_before_turn=1)
    assert by_id["later"].fork == Fork("p", 1)


def test_each_play_has_prompts_of_its_own_that_its_programs_share() -> None:
    prefix = SharedPrefix("system", 80)
    root = Program("p", (Turn(100, 5),), prefix=prefix)
    child = Program("p/a", (Turn(100, 5),), prefix=prefix, fork=Fork("p", 0))
    workload = Workload("w", (root, child), "", ())
    jobs = list(islice(ScenarioJobs(DrawnJobs(workload, 1), 1, RULES), 2))
    ids = [[program.prefix and program.prefix.id for program in job.members] for job in jobs]
    assert ids == [["system@0"] * 2, ["system@1"] * 2]


def test_agentx_begins_between_a_quarter_and_three_quarters_and_its_forerunner_anywhere() -> None:
    assert {name: each.start for name, each in SCENARIOS.items()} == {
        "agentx": (0.25, 0.75),
        "inferencex-agentx-mvp": (0.0, 1.0),
    }
    assert [each.window_s for each in SCENARIOS.values()] == [3600, 1800]


# The schedule -------------------------------------------------------------------------------------


class OneSecond:
    """A server that answers each request in a second."""

    def __init__(
        self, jobs: Iterator[ScenarioJob], agents: int, rules: ScenarioRecord = RULES
    ) -> None:
        self.schedule = ScenarioSchedule(jobs, agents, rules, self._send, self._take_back)
        self.requests: list[tuple[str, int, float]] = []
        """Program, turn, and when it was due in seconds."""
        self._under_way: list[tuple[int, int, ActiveProgram]] = []
        self._serial = count()
        self.schedule.begin()
        while self._under_way:
            end_ps, _, run = heappop(self._under_way)
            self.requests.append((run.program.id, run.turn, end_ps / PS_PER_S - 1))
            self.schedule.ended(run, end_ps, failed=run.program.id == "fails")

    def _send(self, run: ActiveProgram, at_ps: int, record: TurnRecord) -> None:
        assert record.scheduled_at_s == at_ps / PS_PER_S
        heappush(self._under_way, (at_ps + PS_PER_S, next(self._serial), run))

    def _take_back(self, run: ActiveProgram) -> None:
        self._under_way = [each for each in self._under_way if each[2] is not run]
        heapify(self._under_way)


def endless(
    *jobs: tuple[Program, ...], warm: dict[str, int] | None = None
) -> Iterator[ScenarioJob]:
    """Yield the jobs, then others without end."""
    others = ((session(f"other {n}", (1000,)),) for n in count())
    yield from (ScenarioJob(members, warm or {}, 0) for members in chain(jobs, others))


def test_the_window_begins_with_the_earliest_turn_after_the_warm_up() -> None:
    a, b = session("a", (20, 5)), session("b", (23, 5))
    server = OneSecond(endless((a,), (b,), warm={"a": 1, "b": 1}), 2, RULES)
    assert server.requests[:4] == [("a", 0, 0), ("b", 0, 0), ("a", 1, 1), ("b", 1, 4)]
    done = DoneRecord(finished_programs=0, failed_turns=0)
    server.schedule.record_in(done)
    assert done.window is not None
    assert (done.window.from_s, done.window.to_s) == (1, 101)


def test_an_agent_whose_whole_job_has_ended_starts_the_next_one_with_its_first_turn() -> None:
    child = session("a/c", (7,), Fork("a", 0))
    jobs = endless(
        (session("a", ()), child),
        (session("b", (5,)),),
    )
    server = OneSecond(jobs, 1)
    # The root ends at 1 s, its sub-agent has turns at 1 and 9 s and ends at 10 s.
    assert server.requests[:5] == [
        *(("a", 0, 0), ("a/c", 0, 1), ("a/c", 1, 9)),
        *(("b", 0, 10), ("b", 1, 16)),
    ]


def test_no_turn_that_is_due_after_the_window_is_sent() -> None:
    busy = session("busy", (8,) * 20)  # a request every 9 s, which keeps the system awake
    server = OneSecond(endless((busy,), (session("late", (100,)),)), 2)
    assert max(at_s for _, _, at_s in server.requests) == 99
    assert ("late", 1, 101) not in server.requests


def test_if_no_request_is_under_way_all_further_ones_come_earlier() -> None:
    # From 1 s on, none would be due until 31 s: both come 20 s earlier.
    server = OneSecond(endless((session("a", (30,)),), (session("b", (34,)),)), 2)
    later = [request for request in server.requests if request[1] == 1]
    assert later[:2] == [("a", 1, 11), ("b", 1, 15)]


def test_a_job_without_a_request_for_too_long_goes_on_earlier_beside_busy_ones() -> None:
    rules = ScenarioRecord(
        name="test", window_s=100, start=(0.5, 0.5), warm_up_requests=0, job_idle_s=30
    )
    busy = session("busy", (8,) * 20)
    server = OneSecond(endless((busy,), (session("idle", (50,)),)), 2, rules)
    assert ("idle", 1, 31) in server.requests


def test_a_failed_warm_up_request_ends_the_cell() -> None:
    with pytest.raises(CellFailed, match="a warm-up request of fails failed"):
        OneSecond(endless((session("fails", (1,)),), warm={"fails": 1}), 1)


# With servers -------------------------------------------------------------------------------------


def test_a_live_server_gets_the_same_requests_as_one_in_virtual_time() -> None:
    jobs = [
        Program(
            f"p{n}", tuple(Turn(10 + 16 * i, 6, 16 * i, ("ls",), tool_gap_s=4) for i in range(9))
        )
        for n in range(3)
    ]
    rules = ScenarioRecord(name="test", window_s=30, start=(0.25, 0.75), warm_up_requests=2)
    jobs_of_cell = ScenarioJobs(DrawnJobs(Workload("w", tuple(jobs), "", ()), 42), 2, rules)
    virtual: list[Line] = []
    engine = partial(Engine, Fcfs(Costs(prefill_s=float)), profile(100), Limits())
    in_virtual_time = replay_scenario(jobs_of_cell, engine, into(virtual))
    live: list[Line] = []
    server = Server()

    async def replay() -> DoneRecord:
        async with serving(server) as url:
            service = Service([LiveServer(url)], "m", range(2**31), seed=0, turn_timeout_s=30)
            return await replay_live(
                (), None, None, service, on_turn=into(live), scenario_jobs=jobs_of_cell
            )

    on_server = simulated_time.run(replay())
    requests = [
        sorted(
            (line["program_id"], line["turn"], line["prompt_tokens"], line["output_tokens"])
            for line in lines
        )
        for lines in (virtual, live)
    ]
    assert requests[0] == requests[1]
    assert len(requests[0]) > 6 + 2 * 6  # the warm-up, and a request every four seconds
    # The ends of the two sessions at work were reported, so that a server does not keep their KV.
    started = {str(line["program_id"]) for line in live}
    assert len(server.ended) == len(set(server.ended)) == 2
    assert len(started) - on_server.finished_programs == 2
    assert set(server.ended) <= started
    assert in_virtual_time.window is not None
    assert on_server.window is not None
    for window in (in_virtual_time.window, on_server.window):
        assert window.to_s is not None
        assert window.from_s is not None
        assert window.to_s - window.from_s == pytest.approx(30)
