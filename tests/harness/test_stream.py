"""The endless stream of jobs of a seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from small import run_sweep, small_plan

from harness.load.arrivals import Arrivals, parse_arrivals
from harness.load.settings import Load
from harness.load.stream import (
    BLOCK,
    ArrivingJob,
    DrawnJobs,
    JobStream,
    are_alike,
    in_drawn_order,
    with_burst,
)
from harness.load.workload import FreshPrograms, Longest, Workload, load_workload
from servers.basics.errors import CellFailed
from tests.lines import read_lines
from traces import Fork, Program, SharedPrefix, Turn
from traces.check import check

NO_LIMIT = Longest(None, "")
POISSON = Arrivals("poisson")


def recorded(*programs: Program) -> Workload:
    return Workload("recorded", programs, "0" * 64, ())


def recipe(name: str = "swe-bench", longest: Longest = NO_LIMIT, refuse: bool = False) -> Workload:
    return Workload(name, (), "0" * 64, (), fresh=FreshPrograms(name, longest, refuse))


def jobs(
    workload: Workload,
    count: int,
    rate: float = 1.0,
    seed: int = 1,
    arrivals: Arrivals = POISSON,
) -> list[ArrivingJob]:
    return list(islice(JobStream(DrawnJobs(workload, seed), arrivals, rate), count))


def ids(found: list[ArrivingJob]) -> list[str]:
    return [program.id for job in found for program in job.members]


def program(id: str, **fields: object) -> Program:
    return Program(id, (Turn(16, 1),), **fields)  # type: ignore[arg-type]


FIVE = recorded(*(program(name) for name in "abcde"))


def test_all_rates_of_a_seed_have_the_same_jobs_with_scaled_arrivals() -> None:
    slow, fast = jobs(FIVE, 3000, rate=0.5), jobs(FIVE, 3000, rate=2.0)
    assert [job.members for job in slow] == [job.members for job in fast]
    assert [job.index for job in slow] == list(range(3000))
    assert [job.at_ps / 4 for job in slow] == pytest.approx([job.at_ps for job in fast], abs=1)


def test_a_burst_arrives_together_and_the_others_keep_their_gaps() -> None:
    alone = jobs(FIVE, 1000)
    loaded = list(islice(with_burst(JobStream(DrawnJobs(FIVE, 1), POISSON, 1.0), 30), 1000))
    assert [job.members for job in loaded] == [job.members for job in alone]
    assert [job.at_ps for job in loaded[:30]] == [0] * 30
    assert [job.at_ps for job in loaded[30:]] == [job.at_ps - alone[29].at_ps for job in alone[30:]]


def test_the_first_arrivals_are_those_of_a_fixed_set_of_jobs() -> None:
    starts_s, _ = POISSON.draw([program(str(n)) for n in range(2000)], 0.3, seed=7)
    found = [job.at_ps / 1e12 for job in jobs(FIVE, 2000, rate=0.3, seed=7)]
    assert found == pytest.approx(starts_s)


def test_recorded_jobs_are_repeated_in_fresh_orders_with_new_ids() -> None:
    passes = [ids(jobs(FIVE, 15))[begin : begin + 5] for begin in (0, 5, 10)]
    assert sorted(passes[0]) == ["a", "b", "c", "d", "e"]
    assert sorted(passes[1]) == ["a#2", "b#2", "c#2", "d#2", "e#2"]
    assert sorted(passes[2]) == ["a#3", "b#3", "c#3", "d#3", "e#3"]
    assert len({tuple(id[0] for id in order) for order in passes}) > 1


def test_seeds_draw_the_order_of_the_jobs() -> None:
    assert len({tuple(ids(jobs(FIVE, 5, seed=seed))) for seed in range(1, 6)}) > 1


def test_the_sub_agents_of_a_recipe_belong_to_their_job() -> None:
    drawn = [job.members for job in jobs(recipe("claude-code"), 2 * BLOCK)]
    assert [members[0].id for members in drawn] == [f"claude-code-{n}" for n in range(2 * BLOCK)]
    with_agents = [members for members in drawn if len(members) > 1]
    assert with_agents
    for job, *agents in with_agents:
        assert [p.id for p in agents] == [f"{job.id}/agent-{n}" for n in range(1, len(agents) + 1)]
        assert {p.fork and p.fork.program_id for p in agents} == {job.id}
        assert {p.prefix.id for p in agents if p.prefix} <= {f"{job.id}:sub-agents"}
    check([program for members in drawn for program in members])


def test_copies_never_get_the_id_of_a_recorded_program() -> None:
    clash = recorded(program("a"), program("a#2"))
    assert sorted(ids(jobs(clash, 6))) == ["a", "a#2", "a#2#3", "a#2#4", "a#3", "a#4"]


def test_one_job_is_repeated_with_its_sub_agents() -> None:
    one = recorded(
        program("a", recorded_start_s=3.0),
        program("a/x", fork=Fork("a", 0)),
        program("a/x/y", fork=Fork("a/x", 0)),
    )
    third = jobs(one, 3)[2].members
    assert [p.id for p in third] == ["a#3", "a/x#3", "a/x/y#3"]
    assert [p.fork and p.fork.program_id for p in third] == [None, "a#3", "a/x#3"]
    assert third[0].recorded_start_s is None


def test_copies_share_only_the_prefixes_that_other_jobs_have() -> None:
    def with_prefix(id: str, *prefixes: SharedPrefix) -> Program:
        return Program(id, (Turn(64, 1, prefixes=prefixes),))

    both = recorded(
        with_prefix("a", SharedPrefix("system", 16), SharedPrefix("own", 48)),
        with_prefix("b", SharedPrefix("system", 16)),
    )
    copies = {job.members[0].id: job.members[0] for job in jobs(both, 4)}
    prefixes = [prefix.id for prefix in copies["a#2"].turns[0].prefixes]
    assert prefixes == ["system", "own#2"]


def test_a_recipe_is_drawn_fresh_for_each_seed() -> None:
    first, again, other = (jobs(recipe(), 2 * BLOCK + 1, seed=seed) for seed in (1, 1, 2))
    assert [job.members for job in first] == [job.members for job in again]
    assert len(set(ids(first))) == 2 * BLOCK + 1
    shapes = [{job.members[0].turns for job in found} for found in (first, other)]
    assert len(shapes[0]) == len(shapes[1]) == 2 * BLOCK + 1
    assert not shapes[0] & shapes[1]
    assert {job.members[0].prefix for job in first} == {SharedPrefix("swe-bench:system:140", 140)}


def test_fresh_programs_that_do_not_fit_are_left_out_and_counted() -> None:
    short = recipe(longest=Longest(70_000, "the 70000 that fit"))
    found = jobs(short, 100)
    assert all(job.members[0].peak_context_tokens <= 70_000 for job in found)
    # Half of the contexts exceed the mean of 70,126 tokens.
    assert 60 < found[-1].left_out < 160
    drawn = [int(id.removeprefix("swe-bench-")) for id in ids(found)]
    assert [number - job.index for number, job in zip(drawn, found, strict=True)] == [
        job.left_out for job in found
    ]


def test_overlong_refuse_fails_a_cell_that_draws_a_program_that_does_not_fit() -> None:
    short = recipe(longest=Longest(70_000, "the 70000 that fit"), refuse=True)
    with pytest.raises(CellFailed, match=r"70000 that fit; .* --overlong drop"):
        jobs(short, 100)


def test_gaps_of_length_zero_keep_the_order_of_the_jobs() -> None:
    found = jobs(FIVE, 200, arrivals=parse_arrivals("gamma:0.01"))
    times = [job.at_ps for job in found]
    assert times == sorted(times)
    assert len(set(times)) < 150  # most gaps are shorter than a picosecond


def test_programs_limits_the_jobs_that_are_repeated() -> None:
    limited = load_workload(Load(traces=("swe-bench",), programs=3), NO_LIMIT, stream=True)
    assert limited.fresh is None
    first = [program.id for program in limited.programs]
    assert len(first) == 3
    assert set(ids(jobs(limited, 9))) == {id + k for id in first for k in ("", "#2", "#3")}


def test_more_programs_than_the_trace_has_are_no_further_programs_of_a_stream() -> None:
    workload = load_workload(Load(traces=("swe-bench",), programs=500), NO_LIMIT, stream=True)
    assert (len(workload.programs), workload.distinct_programs) == (100, None)


def test_a_pack_of_a_recipe_without_a_limit_is_drawn_fresh() -> None:
    workload = load_workload(Load(), NO_LIMIT, stream=True)
    assert workload.fresh == FreshPrograms("swe-bench", NO_LIMIT, False)
    assert workload.record().recipe == "swe-bench"
    assert load_workload(Load(), NO_LIMIT).fresh is None


def test_a_fixed_set_in_drawn_order_begins_like_the_stream_of_its_seed() -> None:
    jobs_of = (program("a"), program("b"), program("a/x", fork=Fork("a", 0)), program("c"))
    orders = {seed: [p.id for p in in_drawn_order(jobs_of, seed)] for seed in range(1, 9)}
    assert all(sorted(order) == ["a", "a/x", "b", "c"] for order in orders.values())
    assert all(order.index("a/x") == order.index("a") + 1 for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) > 1
    assert orders[3] == ids(jobs(recorded(*jobs_of), 3, seed=3))


def test_jobs_are_alike_if_they_differ_in_names_and_times_only() -> None:
    one = (program("a"), program("a/x", fork=Fork("a", 0)))
    other = (program("b", recorded_start_s=3.0), program("b/x", fork=Fork("b", 0)))
    assert are_alike(one)
    assert are_alike((*one, *other))
    assert not are_alike((*one, *other[:1]))
    assert not are_alike((program("a"), program("b", prefix=SharedPrefix("system", 8))))


@pytest.mark.parametrize(("arrivals", "jps"), [("closed:1", None), ("constant", 0.5)])
def test_seeds_without_arrival_times_start_jobs_in_other_orders_equal_for_all_policies(
    arrivals: str, jps: float | None, tmp_path: Path
) -> None:
    plan = replace(
        small_plan("fcfs,continuum"),
        arrivals=parse_arrivals(arrivals), amounts=(jps,), seeds=(1, 2, 3, 4),
    )  # fmt: skip
    run_sweep(plan, tmp_path, workers=1)
    orders: dict[int, set[tuple[str, ...]]] = {}
    for cell in plan.cells():
        turns = read_lines(tmp_path / cell.name / "turns.jsonl")
        first = sorted((t["scheduled_at_s"], t["program_id"]) for t in turns if not t["turn"])
        orders.setdefault(cell.seed, set()).add(tuple(job for _, job in first))
    assert [len(of_seed) for of_seed in orders.values()] == [1, 1, 1, 1]
    assert len(set.union(*orders.values())) > 1
