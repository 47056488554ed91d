"""No policy beats the lower bound, in any world (docs/design/statistics.md)."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert
from msgspec.json import encode

from reports.metrics.alone import IdleMachine, least_job_s, machine_of
from reports.metrics.jct import job_columns
from reports.metrics.lower_bound import lower_bound, srpt_mean_s
from reports.run_folder.read import NOT_DONE, CellRun
from reports.run_folder.turns import Turns, read_columns
from servers.profiles import Profile, TableProfile, WindowTimes
from servers.profiles.layout import Stages
from servers.records.cell import CellRecord
from servers.sim import Limits
from tests.sim.test_engine_invariants import VARIANTS, run
from tests.sim.test_fleet import ROUTERS, play
from tests.sim.test_pipeline import played
from tests.sim.worlds import World, profile, worlds
from traces import Program, Provenance, Turn

ROUNDING = 1e-9
CELL = {"variant": "fcfs", "jps": 1.0, "seed": 1, "arrivals": "poisson", "workload": {}}


def columns_of(world: World, name: str, folder: Path) -> tuple[Turns, IdleMachine]:
    """Return the turns of a world under a policy, as a report reads them, and its machine."""
    records, _, _ = run(world, name)
    return read_back(world, records, folder)


def read_back(
    world: World, records: list[Any], folder: Path, **changes: Any
) -> tuple[Turns, IdleMachine]:
    (folder / "turns.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in records))
    config: dict[str, Any] = {
        **CELL,
        "engine": "sim",
        "virtual_time": "virtual time",
        "profile": asdict(world.profile),
        "limits": asdict(world.limits),
        "offload": world.offload and asdict(world.offload),
        **changes,
    }
    cell = CellRun(folder, convert(config, CellRecord), NOT_DONE)
    machine = machine_of(cell)
    assert machine is not None
    return read_columns(cell), machine


def least_s(turns: Turns, machine: IdleMachine) -> Any:
    names, codes = np.unique(turns["job_id"].astype(str), return_inverse=True)
    return least_job_s(turns, codes, len(names), machine)


def table(base: Profile) -> TableProfile:
    """Return a profile by tables, whose steps of 4 tokens are shorter than those of one token."""
    knots = ((1, 9_500_000_000), (4, 9_000_000_000), (64, 11_000_000_000), (512, 46_000_000_000))
    numbers = {"decode_ps": 300_000_000, "prefill_ps": 400_000_000, "mean_context_ps": 70_000}
    return TableProfile(**asdict(base), knots=knots, **numbers)


@given(world=worlds(), name=st.sampled_from(VARIANTS), tables=st.booleans())
def test_no_policy_beats_the_bound_and_no_job_its_least_time(
    tmp_path_factory: pytest.TempPathFactory, name: str, tables: bool, world: World
) -> None:
    if tables:
        world = replace(world, profile=table(world.profile))
    turns, machine = columns_of(world, name, tmp_path_factory.mktemp("cell"))
    jobs = job_columns(turns, machine)
    by_id = jobs["jct_s"][np.argsort(jobs["job_id"].astype(str))]
    assert (by_id >= least_s(turns, machine) * (1 - ROUNDING)).all()
    assert jobs["jct_s"].mean() >= lower_bound(turns, machine).mean_jct_s * (1 - ROUNDING)


@given(
    world=worlds(),
    name=st.sampled_from(("fcfs", "turnstile")),
    router=st.sampled_from(list(ROUTERS)),
    replicas=st.integers(2, 4),
)
def test_no_policy_behind_a_router_beats_the_bound_of_several_machines(
    tmp_path_factory: pytest.TempPathFactory, name: str, router: str, replicas: int, world: World
) -> None:
    records, _ = play(world, name, ROUTERS[router], replicas)
    turns, machine = read_back(world, records, tmp_path_factory.mktemp("cell"))
    jct_s = job_columns(turns, machine)["jct_s"]
    assert jct_s.mean() >= lower_bound(turns, machine, replicas).mean_jct_s * (1 - ROUNDING)


def one_program(*turns: Turn, **changes: int) -> World:
    limits = Limits(max_num_seqs=4, step_tokens=64)
    return World([Program("p", turns)], [0.0], profile(**changes), limits, None)


def turn(prompt: int, output: int, kept: int = 0, gap_s: float = 0.0) -> Turn:
    return Turn(prompt, output, kept, ("ls",), None, gap_s, Provenance.SYNTHESISED)


CHUNKS = WindowTimes(96, context_ps=50_000, pair_ps=7_000, chunked=True)
"""With one KV group, so that prompts hit whole blocks of the whole context."""


REQUEST = {"request_ps": 1_000_000, "request_token_ps": 40_000_000}


@pytest.mark.parametrize(
    ("step_tokens", "window"), [(16, None), (64, None), (2048, None), (64, CHUNKS)]
)
def test_a_job_alone_takes_its_least_time(
    tmp_path: Path, step_tokens: int, window: WindowTimes | None
) -> None:
    # Prompts fill their steps, and contexts their blocks but for the last output token.
    world = one_program(turn(64, 17, gap_s=0.7), turn(144, 9, kept=80), **REQUEST)
    limits = replace(world.limits, step_tokens=step_tokens)
    world = replace(world, limits=limits, profile=replace(world.profile, window=window))
    turns, machine = columns_of(world, "fcfs", tmp_path)
    (jct_s,) = job_columns(turns, machine)["jct_s"]
    assert least_s(turns, machine) == pytest.approx([jct_s])
    assert lower_bound(turns, machine).mean_jct_s == pytest.approx(jct_s)


@pytest.mark.parametrize(("stages", "replicas"), [(2, None), (3, 2)])
def test_a_job_alone_passes_all_stages_of_a_pipeline(
    tmp_path: Path, stages: int, replicas: int | None
) -> None:
    world = one_program(turn(64, 17, gap_s=0.7), turn(144, 9, kept=80), **REQUEST)
    records, _ = played(world, "fcfs", Stages(stages, 0, 0))
    machine = {"layout": "pp", "gpus": stages * (replicas or 1), "replicas": replicas}
    turns, idle = read_back(world, records, tmp_path, **machine)
    assert least_s(turns, idle) == pytest.approx(job_columns(turns, idle)["jct_s"])


@given(world=worlds(offload=False), stages=st.integers(2, 4))
def test_no_job_in_a_pipeline_beats_its_least_time(
    tmp_path_factory: pytest.TempPathFactory, stages: int, world: World
) -> None:
    records, _ = played(world, "fcfs", Stages(stages, 0, 0))
    folder = tmp_path_factory.mktemp("cell")
    turns, machine = read_back(world, records, folder, layout="pp", gpus=stages)
    jobs = job_columns(turns, machine)
    by_id = jobs["jct_s"][np.argsort(jobs["job_id"].astype(str))]
    assert (by_id >= least_s(turns, machine) * (1 - ROUNDING)).all()
    assert jobs["jct_s"].mean() >= lower_bound(turns, machine).mean_jct_s * (1 - ROUNDING)


def test_the_least_time_is_the_sum_of_its_steps(tmp_path: Path) -> None:
    # A prompt of 32 tokens in one step: 10 ms, and 32 · 33 ÷ 2 pairs of 3 ns. Two decodes of 33 and
    # 34 tokens: 10 ms each, and 80 ns per token.
    turns, machine = columns_of(one_program(turn(32, 3)), "fcfs", tmp_path)
    assert least_s(turns, machine) == pytest.approx([0.030 + 528 * 3e-9 + 67 * 80e-9])


def test_srpt_finishes_the_shorter_job_first_even_if_it_comes_later() -> None:
    # The job of 5 s has 4 s left when the one of 2 s arrives, which ends at 3; the first ends at 7.
    assert srpt_mean_s(np.array([0.0, 1.0]), np.array([5.0, 2.0])) == pytest.approx((7 + 2) / 2)


def test_many_jobs_at_once_wait_for_each_other_in_the_bound(tmp_path: Path) -> None:
    # With 64 tokens per step, ten prompts of 640 tokens take 100 steps of 10 ms in all, and so
    # job k of any order ends after 10 k steps: 55 on average, although one alone takes 10.
    programs = [Program(f"p{k}", (turn(640, 1),)) for k in range(10)]
    world = replace(one_program(turn(640, 1)), programs=programs, starts_s=[0.0] * 10)
    world = replace(world, profile=profile(kv_blocks=4000, pair_ps=0))
    bound = lower_bound(*columns_of(world, "fcfs", tmp_path))
    assert bound.mean_jct_s == pytest.approx(0.55)
    assert bound.jobs_per_s == pytest.approx(10)


def test_two_machines_do_the_work_of_ten_jobs_in_half_the_time_in_the_bound(tmp_path: Path) -> None:
    # As before, but job k of any order ends after 5 k steps at the earliest. On two machines, which
    # share no job, they end after 10, 10, 20, 20, … steps: 30 on average.
    programs = [Program(f"p{k}", (turn(640, 1),)) for k in range(10)]
    world = replace(one_program(turn(640, 1)), programs=programs, starts_s=[0.0] * 10)
    world = replace(world, profile=profile(kv_blocks=4000, pair_ps=0))
    bound = lower_bound(*columns_of(world, "fcfs", tmp_path), machines=2)
    assert bound.mean_jct_s == pytest.approx(0.275)
    assert bound.jobs_per_s == pytest.approx(20)


@pytest.mark.parametrize(("lengths", "tokens"), [((1, 1), 160), ((2, 1), 320), ((1, 2), 160)])
def test_the_bound_counts_the_tokens_of_blocks_with_full_attention(
    lengths: tuple[int, int], tokens: int
) -> None:
    kv: dict[str, Any] = {"kv_groups": (40, 40, None), "block_lengths": lengths}
    machine = IdleMachine(replace(profile(10), **kv), 64, 4, offload=False)
    assert machine.kv_tokens == tokens


def test_a_job_in_a_tool_gap_pays_for_its_kv_or_for_computing_it_again(tmp_path: Path) -> None:
    # Its 160 tokens fill the device for 6 s, or take 2.5 steps of 10 ms to compute again.
    world = one_program(turn(144, 17, gap_s=6.0), turn(320, 1, kept=160), kv_blocks=21)
    turns, machine = columns_of(world, "fcfs", tmp_path)
    without = lower_bound(turns | {"gap_s": np.zeros(2)}, machine)
    with_gap = lower_bound(turns, machine)
    assert with_gap.jobs_per_s < without.jobs_per_s
    assert with_gap.jobs_per_s > 1 / (1 / without.jobs_per_s + 0.025)


@pytest.mark.parametrize("engine", ["http://localhost", "sim"])
def test_a_cell_that_was_measured_or_lacks_a_profile_has_no_machine(
    tmp_path: Path, engine: str
) -> None:
    config = convert({**CELL, "engine": engine}, CellRecord)
    assert machine_of(CellRun(tmp_path, config, NOT_DONE)) is None
