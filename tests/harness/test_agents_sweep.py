"""Sweeps over agents in flight: their cells and capacities, resuming, and what they refuse."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import bench
from small import contents, found_in, programs, run_sweep, search_plan

from harness.load.arrivals import parse_arrivals
from harness.load.option import build
from harness.load.rates import parse_agents
from harness.load.settings import Load, Machine, SweepSettings
from harness.load.settings_file import read_settings
from harness.sweep.folder import settings_files
from harness.sweep.plan import SweepPlan
from harness.sweep.resolve import resolve
from reports import write_report
from reports.capacity.estimate import Kind
from reports.loads import AGENTS
from reports.run_folder.read import load_run
from servers.basics.errors import InvalidInput
from servers.records.done import PERCENTS
from tests.sentences import mentions
from traces.formats.native import write_programs


def agents_plan(
    policies: str = "fcfs",
    agents: tuple[float, ...] = (),
    seeds: tuple[int, ...] = (1,),
    slo: str = "mean<=2x",
    arrivals: str = "agents",
) -> SweepPlan:
    plan = search_plan(policies, agents, seeds, slo)
    return replace(plan, arrivals=parse_arrivals(arrivals), arrivals_text=arrivals)


def done_of(cell: Path) -> dict[str, Any]:
    return dict(json.loads((cell / "done.json").read_text()))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "agents"
    outcome = run_sweep(agents_plan("fcfs,continuum", seeds=(1, 2)), folder, workers=1)
    assert not outcome.failed
    return folder


def test_a_search_finds_how_many_agents_each_policy_sustains(run: Path) -> None:
    found = found_in(run)
    assert found.ladder is AGENTS
    for each in found.found:
        assert each.kind is Kind.FOUND
        for seed, capacity in each.by_seed.items():
            below, above = (
                done_of(run / f"{each.variant}_agents{agents:g}_seed{seed}")
                for agents in (capacity.sustained, capacity.not_sustained)
            )
            limit_s = 2 * below["idle_times_s"]["jct"]["mean"]
            assert below["steady"]
            assert below["times_s"]["jct"]["mean"] <= limit_s
            assert above.get("unstable") or above["times_s"]["jct"]["mean"] > limit_s


def test_littles_law_holds_in_every_steady_cell(run: Path) -> None:
    """Agents in flight = jobs per second · mean JCT."""
    cells = [cell for cell in load_run(run).cells if cell.done.steady]
    assert len(cells) > 5
    for cell in cells:
        done, window = cell.done, cell.done.window
        assert done.times_s is not None
        assert window is not None
        assert window.to_s is not None
        assert window.from_s is not None
        per_s = (window.finished_jobs or 0) / (window.to_s - window.from_s)
        in_flight = per_s * done.times_s.jct.mean
        assert in_flight == pytest.approx(cell.config.agents, rel=0.05), cell.folder.name


def test_the_report_counts_agents(run: Path) -> None:
    report = write_report(run)
    assert "on a100-80g" in report.answer[0]
    assert " agents" in report.answer[0]
    document = json.loads((run / "answer.json").read_text())
    assert document["capacities"]["fcfs"]["agents"] > 1
    assert all("agents" in point for point in document["points"])
    header = (run / "cells.csv").read_text().splitlines()[0].split(",")
    assert header[header.index("jps") + 1] == "agents"
    page = (run / "report.html").read_text()
    assert "Mean JCT against agents" in page
    assert "jobs per second" not in page.partition("<script")[0].lower()


def test_given_numbers_of_agents_run_in_any_case_and_narrow_the_search(tmp_path: Path) -> None:
    run_sweep(agents_plan(agents=(2.0, 6.0)), tmp_path / "run", workers=1)
    found = found_in(tmp_path / "run")
    base = found.found[0].load
    assert base is not None
    shares = {AGENTS.nearest_rung(share * base.value) for share in (0.85, 1.2)}
    assert set(found.rates) == {2.0, 6.0} | shares
    sweep = load_run(tmp_path / "run").sweep
    assert (sweep.agents, sweep.jps) == ((2, 6), ())


def test_an_interrupted_search_for_agents_ends_with_the_bytes_of_an_uninterrupted_one(
    run: Path, tmp_path: Path
) -> None:
    plan, folder = agents_plan("fcfs,continuum", seeds=(1, 2)), tmp_path / "again"
    run_sweep(agents_plan("fcfs", seeds=(1, 2)), folder, workers=1, reuse=False)
    run_sweep(plan, folder, workers=2, reuse=False)
    again, whole = contents(folder), contents(run)
    assert again == {name: whole[name] for name in again}
    assert {name for name in whole if "done.json" in name} <= again.keys()


def test_think_times_let_a_machine_serve_more_agents(run: Path, tmp_path: Path) -> None:
    run_sweep(agents_plan(arrivals="agents:20"), tmp_path / "run", workers=1)
    folders = (run, tmp_path / "run")
    busy, thinking = (found_in(folder).found[0].by_seed[1].load for folder in folders)
    assert thinking > 2 * busy


@pytest.mark.parametrize(
    ("slo", "reason"),
    [
        ("ttft_p95<=1ms", "where the P95 TTFT is "),
        ("speed_p90>=100000", "where speed_p90 is "),
    ],
)
def test_an_slo_on_turns_that_an_idle_machine_does_not_meet_is_refused_with_what_it_reaches(
    slo: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as error:
        run_sweep(agents_plan(slo=slo), tmp_path / "run", workers=1)
    assert mentions(str(error.value), f"--slo '{slo}'", "idle machine", reason.strip())
    assert not (tmp_path / "run").exists()
    if speed := re.search(r"is ([\d.]+) tokens/s .* (\d+)x that", str(error.value)):
        assert float(speed[1]) * float(speed[2]) == pytest.approx(100_000, rel=0.01)
    assert bool(speed) is slo.startswith("speed")


def test_an_slo_on_turns_bounds_the_agents_and_names_the_limit(tmp_path: Path) -> None:
    run_sweep(agents_plan(slo="mean<=9x,ttft_p95<=1s"), tmp_path / "run", workers=1)
    capacity = found_in(tmp_path / "run").found[0].by_seed[1]
    assert capacity.limit == "ttft_p95<=1s"
    cells = {
        which: done_of(tmp_path / f"run/fcfs_agents{agents:g}_seed1")["times_s"]["ttft"]
        for which, agents in (("below", capacity.sustained), ("above", capacity.not_sustained))
    }
    p95 = PERCENTS.index(95)
    assert cells["below"]["percentiles"][p95] <= 1 < cells["above"]["percentiles"][p95]


# Settings ------------------------------------------------------------------------------------


def settings(**given: Any) -> SweepSettings:
    values = {"policies": "fcfs", **given}
    names = ("arrivals", "once", "agents", "traces", "programs", "horizon", "burst")
    load = {n: values.pop(n) for n in names if n in values}
    machine = {n: values.pop(n) for n in ("engine",) if n in values}
    return SweepSettings(load=Load(**load), machine=Machine(**machine), **values)


def test_numbers_of_agents_imply_their_arrivals() -> None:
    plan = resolve(settings(agents="8,16..20:2"))
    assert (plan.arrivals_text, plan.amounts) == ("agents", (8.0, 16.0, 18.0, 20.0))
    assert (plan.steady, str(plan.slo)) == (True, "ttft_p95<=5s")
    assert str(resolve(settings(agents="8", slo="mean<=2x")).slo) == "mean<=2x"
    assert resolve(settings(arrivals="agents:60")).amounts == ()
    assert resolve(settings(arrivals="agents:60", agents="4")).arrivals_text == "agents:60"
    assert resolve(settings(agents="4", no_capacity=True)).slo is None


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    write_programs(path := tmp_path / "t.jsonl", programs(3))
    return str(path)


@pytest.mark.parametrize(
    ("given", "arrivals"),
    [
        ({}, "agents"),
        ({"programs": 2}, "agents"),
        ({"traces": ("t.jsonl", "swe-bench")}, "agents"),
        ({"traces": ("requests.jsonl",)}, "poisson"),
        ({"traces": ("swe-bench",)}, "poisson"),
        ({"traces": ("swe-bench",), "programs": 2}, "poisson"),
        ({"traces": ()}, "poisson"),
        ({"arrivals": "poisson"}, "poisson"),
        ({"jps": "auto"}, "poisson"),
        ({"jps": "0.1"}, "poisson"),
        ({"horizon": "24h"}, "poisson"),
        ({"burst": "5"}, "poisson"),
        ({"once": True}, "poisson"),
        ({"no_capacity": True}, "poisson"),
        ({"arrivals": "poisson", "agents": "4"}, "agents"),
        ({"arrivals": "agents:60"}, "agents:60"),
    ],
    ids=str,
)
def test_agents_are_the_load_of_recorded_sessions_unless_an_option_asks_for_another(
    given: dict[str, Any], arrivals: str, recorded: str
) -> None:
    """Single requests, of one turn each, are no sessions."""
    requests = tuple(replace(each, turns=each.turns[:1]) for each in programs(3))
    write_programs(Path(recorded).with_name("requests.jsonl"), requests)
    names = given.get("traces", ("t.jsonl",))
    folder = Path(recorded).parent
    traces = tuple(str(folder / name) if name.endswith("l") else name for name in names)
    plan = resolve(settings(**{**given, "traces": traces}))
    assert (plan.arrivals_text, plan.settings.load.arrivals) == (arrivals, arrivals)
    assert plan.amounts or plan.slo is not None


def test_the_settings_of_a_run_name_the_load_that_was_chosen(recorded: str, tmp_path: Path) -> None:
    plan = resolve(settings(traces=(recorded,)))
    path = tmp_path / "sweep.toml"
    path.write_bytes(settings_files(plan.settings)["sweep.toml"])
    again = resolve(build(SweepSettings, read_settings(path)))
    assert again.settings.load.arrivals == "agents"
    assert again.sweep_record() == plan.sweep_record()
    with pytest.raises(InvalidInput, match=r"^--jps 0.3: .* use --arrivals poisson,"):
        resolve(build(SweepSettings, {**read_settings(path), "jps": "0.3"}))
    rates = {**read_settings(path), "jps": "0.3", "arrivals": "poisson"}
    assert resolve(build(SweepSettings, rates)).amounts == (0.3,)


@pytest.mark.parametrize("arrivals", [(), ("--arrivals", "agents")])
def test_a_number_of_unknown_unit_is_refused_as_a_condition(
    arrivals: tuple[str, ...], recorded: str, tmp_path: Path
) -> None:
    """With agents, 0.02 jobs/s would hold for every policy that serves one agent."""
    command = ("sweep", "--traces", recorded, "--policies", "fcfs", "--out", str(tmp_path / "run"))
    limits = ("--slo", "ttft_p95<=1ms", "--seeds", "1")  # refused after the condition
    code, _, err = bench(*command, *limits, *arrivals, "--fail-unless", "capacity(fcfs) >= 0.02")
    assert code == 2
    assert ("; add --arrivals agents or --arrivals poisson\n" in err) == (not arrivals), err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"agents": "8", "arrivals": "constant"},
            "--agents 8: --arrivals constant has no agents; remove one",
        ),
        (
            {"arrivals": "agents", "jps": "0.1"},
            "--jps 0.1: --arrivals agents has no rate; use --arrivals poisson, or give numbers of"
            " agents with --agents instead of --jps",
        ),
        (
            {"arrivals": "agents", "once": True},
            "--once: agents go on until a steady state has been measured; use --arrivals closed:N"
            " for a fixed set of jobs, N in flight",
        ),
        (
            {"arrivals": "agents", "no_capacity": True},
            "--arrivals agents: without a search, give numbers of agents with --agents, such as"
            " 8,16,32",
        ),
        ({"agents": "0"}, "--agents '0': '0': use numbers from 1 to 4,096, the smaller first"),
        ({"agents": "9..3"}, "--agents '9..3': '9..3': use numbers from 1 to 4,096, the smaller"),
        ({"agents": "1.5"}, "--agents '1.5': '1.5' is not a whole number; use 40, or 10..50:10"),
        ({"agents": ""}, "--agents '': no value; use for example 40 or 8,16,32"),
        ({"arrivals": "agents:-1"}, "--arrivals 'agents:-1': use poisson, "),
        (
            {"arrivals": "agents", "engine": "vllm"},
            "--arrivals agents: is for virtual time; on a live server use --arrivals closed:N",
        ),
    ],
)
def test_settings_that_agents_exclude_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        resolve(settings(**given))
    assert str(error.value).startswith(message)


def test_agents_are_a_list_or_a_range_with_a_step() -> None:
    assert parse_agents("40") == (40,)
    assert parse_agents("3..5, 4, 10..30:10") == (3, 4, 5, 10, 20, 30)
