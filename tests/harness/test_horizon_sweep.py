"""Sweeps of the jobs that arrive within a horizon: files, settings, and what a report says."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from small import contents, killed_before_the_end, run_sweep, small_plan

from harness.load.arrivals import parse_arrivals
from harness.load.settings import Execution, Load, Machine, SweepSettings
from harness.sweep.members import MembersPlan, resolve_members
from harness.sweep.plan import Cell, SweepPlan
from harness.sweep.resolve import resolve
from harness.sweep.run import run_sweeps
from reports import write_members_report, write_report
from reports.answer.members import recovered, recoveries
from reports.capacity.estimate import Capacity, Kind
from reports.capacity.slo import parse_slo
from reports.loads import RATES, least_rate
from reports.run_folder.read import load_run
from reports.statistics.capacities import VariantCapacity
from reports.statistics.over_seeds import reached_by_most
from servers.basics.errors import InvalidInput
from servers.records.settings import HorizonRecord
from tests.lines import read_lines
from tests.sentences import mentions


def horizon_plan(
    policies: str = "fcfs", jps: tuple[float, ...] = (0.2,), burst: int = 0, slo: str = ""
) -> SweepPlan:
    return replace(
        small_plan(policies, jps),
        steady=True,
        horizon=HorizonRecord(seconds=600.0, burst=burst),
        slo=parse_slo(slo) if slo else None,
    )


def test_a_resumed_sweep_has_the_bytes_of_an_uninterrupted_one(tmp_path: Path) -> None:
    plan = horizon_plan("fcfs,continuum")
    run_sweep(plan, tmp_path / "once", workers=1)
    run_sweep(plan, tmp_path / "resumed", workers=1, run=killed_before_the_end)
    run_sweep(plan, tmp_path / "resumed", workers=2)
    assert contents(tmp_path / "once") == contents(tmp_path / "resumed")


def test_all_variants_have_the_same_jobs_all_of_which_finish(tmp_path: Path) -> None:
    run_sweep(horizon_plan("fcfs,continuum"), tmp_path, workers=1)
    starts = []
    for variant in ("fcfs", "continuum"):
        turns = read_lines(tmp_path / f"{variant}_jps0.2_seed1/turns.jsonl")
        starts.append(
            sorted((t["program_id"], t["scheduled_at_s"]) for t in turns if not t["turn"])
        )
        assert all(t["finished_at_s"] for t in turns)
    assert starts[0] == starts[1]
    assert all(at_s < 600 for _, at_s in starts[0])
    # 600 s · 0.2 jobs/s, give or take three deviations.
    assert 120 - 33 < len(starts[0]) < 120 + 33


def test_jobs_of_a_day_arrive_in_its_busy_hours_and_all_finish(tmp_path: Path) -> None:
    profile = "day:" + ",".join("0" * 18 + "31" + "0" * 4)
    plan = replace(
        horizon_plan(jps=(0.001,)),
        horizon=HorizonRecord(seconds=86_400.0),
        arrivals=parse_arrivals(profile),
        arrivals_text=profile,
    )
    run_sweep(plan, tmp_path, workers=1)
    turns = read_lines(tmp_path / "fcfs_jps0.001_seed1/turns.jsonl")
    hours = Counter(t["scheduled_at_s"] // 3600 for t in turns if not t["turn"])
    # 86,400 s · 0.001 jobs/s: 64.8 jobs in one hour and 21.6 in the next, give or take three
    # deviations.
    assert set(hours) == {18, 19}
    assert abs(hours[18] - 64.8) < 24.1
    assert abs(hours[19] - 21.6) < 13.9
    assert all(t["finished_at_s"] for t in turns)


def test_the_same_rates_after_another_horizon_or_burst_are_other_cells(tmp_path: Path) -> None:
    plans = (horizon_plan(), horizon_plan(burst=7), replace(horizon_plan(), horizon=None))
    records = [plan.cell_record(plan.cells()[0]) for plan in plans]
    assert len({str(record) for record in records}) == 3
    run_sweep(plans[1], tmp_path, workers=1)
    cell = json.loads((tmp_path / "fcfs_jps0.2_seed1/cell.json").read_text())
    assert cell["horizon"] == {"seconds": 600.0, "burst": 7}


def test_a_search_finds_the_rate_at_which_the_jobs_of_the_horizon_meet_the_slo(
    tmp_path: Path,
) -> None:
    run_sweep(horizon_plan("fcfs,continuum", slo="mean<=2x"), tmp_path, workers=1)
    report = write_report(tmp_path)
    assert mentions(report.answer, "Sustained", "mean JCT at most 2x", "10 min", "empty machine")
    cells = load_run(tmp_path).cells
    assert len(cells) > 4
    for cell in cells:
        assert cell.done.window is not None
        assert cell.done.unstable or cell.done.window.to_s == 600.0


def test_what_most_draws_sustain_is_below_the_mean_by_a_prediction_bound() -> None:
    # Logarithms 0 and 2 · ln 2: mean ln 2, deviation √2 · ln 2, t(1 degree, 95%) = 6.3138.
    bound = 2 * 2 ** -(6.313752 * 2**0.5 * 1.5**0.5)
    assert reached_by_most([1.0, 4.0]) == pytest.approx(bound, rel=1e-5)
    # The lowest of 19 values is exceeded by a twentieth one with a probability of 95%.
    assert reached_by_most([*range(2, 20), 1]) == 1
    assert reached_by_most(range(1, 40)) == 2


def test_a_list_of_bursts_is_a_sweep_for_each_that_shares_cells_with_others() -> None:
    bursts = resolve_members(settings(burst="0,7"))
    assert list(bursts.plans) == ["burst0", "burst7"]
    assert [member.burst for member in bursts.record().members] == [0, 7]
    cell = Cell("fcfs", 0.02, 1, "poisson")
    for plan, alone in zip(bursts.plans.values(), (settings(), settings(burst="7")), strict=True):
        assert plan.cell_record(cell) == resolve(alone).cell_record(cell)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"no_capacity": True, "jps": "0.1"}, "--burst 0,7: a list compares capacities; remove"),
        ({"hardware": "h100,l4"}, "--burst 0,7: is a list, and so is --hardware or --model; give"),
        ({"engine": "vllm"}, "--engine vllm: runs on one machine, and --hardware, --model or"),
    ],
)
def test_a_list_of_bursts_that_cannot_run_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        resolve_members(settings(burst="0,7", **given))
    assert str(error.value).startswith(message)


def test_the_page_of_several_bursts_draws_capacity_against_the_burst(tmp_path: Path) -> None:
    each = {n: horizon_plan(burst=n, slo="mean<=3x") for n in (0, 9)}
    plans = {f"burst{n}": plan for n, plan in each.items()}
    machines = MembersPlan(replace(each[0].settings, load=Load(burst="0,9")), plans)
    claim = machines.claimed(tmp_path, (), None)
    outcome = run_sweeps(plans, tmp_path, Execution(workers=1), claim=claim)
    assert not outcome.failed
    report = write_members_report(tmp_path)
    found = {
        member.burst: {c.variant: c for c in one.result.capacities}
        for member, one in report.reports
    }
    assert found[0]["fcfs"].load is not None
    burst = "0.2 jobs/s", "every seed", "bursts of up to 9 jobs"
    assert found[9]["fcfs"].sustained_at(0.2).is_all == mentions(report.headline, *burst)
    assert 'id="bursts" role="img"' in report.path.read_text()
    table = report.capacities
    assert table is not None
    assert {row.group for row in table.rows} == {"no burst", "after a burst of 9 jobs"}


def capacity_of(sustained: float | None) -> VariantCapacity:
    kind = Kind.NEVER if sustained is None else Kind.FOUND
    one = Capacity(kind, sustained or math.nan, sustained, 2 * (sustained or 1))
    return VariantCapacity("fcfs", "", {1: one}, None)


def test_a_scheduler_recovers_from_a_burst_if_it_does_from_all_smaller_ones() -> None:
    own: dict[int, VariantCapacity | None]
    own = {0: capacity_of(0.4), 10: capacity_of(0.2), 20: capacity_of(0.3), 40: capacity_of(None)}
    assert [recovered(own, rate) for rate in (0.5, 0.4, 0.3, 0.2, 0.1)] == [None, 0, 0, 20, 20]
    assert recovered({0: capacity_of(0.4), 10: None, 20: capacity_of(0.4)}, 0.3) == 0
    names = {"fcfs": own, "lmcache": {n: capacity_of(0.4) for n in own}}
    with_burst, without = recoveries(names, 0.3).split(";")
    assert mentions(with_burst, "0.3 jobs/s", "40 jobs with lmcache")
    assert mentions(without, "without a burst", "fcfs")


def settings(**given: Any) -> SweepSettings:
    values = {"policies": "fcfs", **given}
    names = ("arrivals", "once", "agents", "horizon", "burst")
    load = {n: values.pop(n) for n in names if n in values}
    machine = {n: values.pop(n) for n in ("engine", "hardware") if n in values}
    return SweepSettings(load=Load(**load), machine=Machine(**machine), **values)


def test_a_horizon_is_a_time_with_its_unit() -> None:
    for text, expected_s in (("24h", 86_400.0), ("90 min", 5_400.0), ("7d", 604_800.0)):
        assert resolve(settings(horizon=text)).horizon == HorizonRecord(seconds=expected_s)
    assert resolve(settings(horizon="8h, 300", burst="50")).horizon == HorizonRecord(
        seconds=28_800.0, jobs=300, burst=50
    )


def test_jobs_that_arrive_at_a_rate_do_so_for_a_day_unless_a_steady_state_is_asked_for() -> None:
    day = HorizonRecord(seconds=86_400.0, jobs=5_000)
    assert resolve(settings()).horizon == day
    assert resolve(settings(jps="0.1", no_capacity=True)).horizon == day
    assert resolve(settings(burst="9")).horizon == structs.replace(day, burst=9)
    for given in ({"horizon": "steady"}, {"once": True}, {"agents": "4"}):
        assert resolve(settings(**given)).horizon is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"horizon": "24"},
            "--horizon '24': give a time with its unit, such as 8h or 7d, a time"
            " and the most jobs, such as 24h,5000, or steady",
        ),
        ({"horizon": "a day"}, "--horizon 'a day': give a time with its unit"),
        ({"horizon": "0h"}, "--horizon 0h: must be above zero and at most 366d"),
        ({"horizon": "9999d"}, "--horizon 9999d: must be above zero and at most 366d"),
        (
            {"horizon": "1h", "jps": "0.1,0.001"},
            "--jps 0.001: only 3.6 jobs arrive in 1 h; give a longer --horizon, --horizon steady, "
            "or at least 0.0069 jobs/s",
        ),
        ({"horizon": "1h,24"}, "--horizon 1h,24: must have at least 25 jobs"),
        (
            {"burst": "3976", "horizon": "24h,4000"},
            "--burst 3976: at least 25 of at most 4,000 jobs must arrive after it; give a smaller "
            "burst, or --horizon 24h without that limit",
        ),
        (
            {"burst": "5", "horizon": "steady"},
            "--burst 5: is for cells that begin with an empty machine; remove it, or --horizon "
            "steady, whose cells begin with a burst of their own",
        ),
        ({"burst": "5", "agents": "4"}, "--burst 5: is for jobs that arrive at a rate in virtual"),
        ({"burst": "0,5"}, "--burst 0,5: only bench sweep takes a list; give one of them"),
        ({"burst": "few"}, "--burst 'few': 'few' is not a whole number; use 40, or 10..50:10"),
        (
            {"arrivals": "day:office", "horizon": "24h,5000"},
            "--horizon 24h,5000: --arrivals day:office has the mean rate over whole days only; use"
            " --horizon 24h or 7d, without a limit of jobs",
        ),
        ({"arrivals": "day:office", "burst": "5"}, "--burst 5: begins at midnight with --arr"),
        (
            {"horizon": "1h", "once": True},
            "--horizon 1h: is for jobs that arrive at a rate in virtual time, and with --once the "
            "jobs are a fixed set; remove one of them",
        ),
        ({"horizon": "1h", "agents": "4"}, "--horizon 1h: is for jobs that arrive at a rate in"),
        ({"horizon": "1h", "arrivals": "closed:2"}, "--horizon 1h: is for jobs that arrive at a"),
        ({"horizon": "1h", "engine": "vllm"}, "--horizon 1h: is for jobs that arrive at a rate"),
    ],
)
def test_settings_that_a_horizon_excludes_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        resolve(settings(**given))
    assert str(error.value).startswith(message)


def test_the_horizon_of_a_daily_profile_is_a_whole_day() -> None:
    plan = resolve(settings(arrivals="day:office"))
    assert plan.horizon == HorizonRecord(seconds=86_400.0)
    assert resolve(settings(arrivals="day:office", horizon="2d")).horizon is not None


def test_a_profile_of_a_file_is_recorded_as_its_numbers(tmp_path: Path) -> None:
    file = tmp_path / "hours.csv"
    file.write_text("1\n" * 12 + "3\n" * 12)
    plan = resolve(settings(arrivals=f"day:{file}"))
    assert plan.cell_record(Cell("fcfs", 0.02, 1, plan.arrivals_text)).arrivals == (
        "day:1,1,1,1,1,1,1,1,1,1,1,1,3,3,3,3,3,3,3,3,3,3,3,3"
    )


def test_a_search_within_a_horizon_ends_at_the_lowest_rate_with_25_jobs() -> None:
    # 25 jobs in 600 s; 1.05^-65 is 0.0419 and the first rung above 0.0417.
    ends = RATES.ends(10.0, least_rate(600.0))
    assert ends.lowest_load == RATES.rung(-65)
    assert RATES.rung(-66) < 25 / 600 <= RATES.rung(-65)
