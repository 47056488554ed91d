"""Sweeps that search capacities: their cells, resuming, reuse, and what they refuse."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import bench
from rich.console import Console
from small import cells_of, contents, found_in, never, run_sweep, search_plan

from harness.cells.workers import Tick
from harness.cli.tuned import scores_of
from harness.load.settings import Load, Machine, SweepSettings
from harness.sweep import search
from harness.sweep.cell import Work, idle_times, run_cell
from harness.sweep.plan import Cell, SweepPlan
from harness.sweep.resolve import resolve
from harness.sweep.search import CapacitySearch, refuse_unreachable
from reports import loads, write_report
from reports.answer.condition import parse_condition
from reports.answer.held import evaluate
from reports.answer.report import Report
from reports.answer.table import ResultTable
from reports.capacity.estimate import Kind
from reports.loads import RATES
from reports.run_folder.read import load_run
from reports.statistics.bootstrap import Estimate
from servers.basics.errors import InvalidInput
from servers.records.done import Times
from tests.sentences import mentions


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "auto"
    outcome = run_sweep(search_plan("fcfs,continuum", seeds=(1, 2)), folder, workers=1)
    assert not outcome.failed
    assert outcome.cells == len(cells_of(folder))
    return folder


def test_a_search_finds_the_capacity_of_each_policy_with_each_seed(run: Path) -> None:
    found = found_in(run).found
    assert [each.variant for each in found] == ["fcfs", "continuum"]
    for each in found:
        assert each.kind is Kind.FOUND
        assert set(each.by_seed) == {1, 2}
    assert scores_of(run) == {each.variant: each.load and each.load.value for each in found}


def jct_of(done: dict[str, Any], times: str = "times_s") -> float:
    return float(done[times]["jct"]["mean"])


def test_the_cells_around_a_capacity_are_on_both_sides_of_the_slo(run: Path) -> None:
    """The rate below has a mean JCT of at most twice the idle one; the rate above has not."""
    for each in found_in(run).found:
        for seed, capacity in each.by_seed.items():
            below, above = (
                json.loads((run / f"{each.variant}_jps{jps:g}_seed{seed}/done.json").read_text())
                for jps in (capacity.sustained, capacity.not_sustained)
            )
            assert below["steady"]
            assert jct_of(below) <= 2 * jct_of(below, "idle_times_s")
            assert above.get("unstable") or jct_of(above) > 2 * jct_of(above, "idle_times_s")


def test_all_policies_run_at_shares_of_the_baselines_capacity(run: Path) -> None:
    rates = found_in(run).rates
    base = found_in(run).found[0].load
    assert base is not None
    assert rates == tuple(RATES.nearest_rung(share * base.value) for share in (0.85, 1.2))
    assert cells_of(run) >= {
        f"{variant}_jps{jps:g}_seed{seed}"
        for variant in ("fcfs", "continuum")
        for jps in rates
        for seed in (1, 2)
    }


def test_no_cell_of_a_finished_search_is_missing(run: Path) -> None:
    assert load_run(run).missing == ()
    assert json.loads((run / "sweep.json").read_text())["search"] == {"slo": "mean<=2x"}


@pytest.fixture(scope="module")
def report(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("reports") / "auto"
    shutil.copytree(run, folder)
    return write_report(folder)


def test_the_answer_for_programs_has_the_numbers_of_the_report(report: Report) -> None:
    document = json.loads((report.path.parent / "answer.json").read_text())
    assert document["format"] == "turnstile-answer-1"
    assert document["answer"] == report.answer[0]
    assert document["slo"] == "mean<=2x"
    for each in report.result.capacities:
        found = document["capacities"][each.variant]
        assert each.load is not None
        assert found["low"] < found["jobs_per_s"] == each.load.value < found["high"]
        assert found["by_seed"].keys() == {"1", "2"}
    assert document["ratios"].keys() == {"continuum"}
    assert {point["variant"] for point in document["points"]} == {"fcfs", "continuum"}
    assert document["provenance"]["hardware"] == "a100-80g"


def test_no_speed_up_is_given_where_a_variant_is_unstable(report: Report) -> None:
    cells = report.cells
    unstable = cells[(cells["unstable"] != "") & (cells["variant"] == "fcfs")]
    loads = {point.load for point in report.points if point.against is not None}
    assert loads
    assert not loads & set(unstable["load"])


def test_jcts_are_shown_at_the_common_rates_only(run: Path, report: Report) -> None:
    assert {point.amount for point in report.points} <= set(found_in(run).rates)
    assert len(report.cells) == len(cells_of(run))


def test_the_page_begins_with_a_picture_of_the_capacities_and_says_what_limits_them(
    report: Report,
) -> None:
    html = report.path.read_text()
    answer = html[html.index('class="answer"') : html.index("</section>")]
    assert answer.index('id="capacity"') < answer.index('id="jct-mean"')
    assert answer.index('id="jct-mean"') < answer.index("<b>Why.</b>") < answer.index("<b>Names.")
    assert answer.count("first misses") == len(report.result.reasons) > 0
    assert html.count("first misses") == answer.count("first misses")
    assert html.count('id="jct-mean"') == 1
    assert '<h2 id="capacity-table">Capacity</h2>' in html


def test_the_terminal_has_a_matrix_of_policies_and_rates_in_80_columns(
    run: Path, report: Report
) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.matrix)
    lines = console.export_text().splitlines()
    assert lines[0].split()[:5] == ["policy", "sustains", "95%", "CI", "ratio"]
    assert lines[0].split()[-1] == f"{found_in(run).rates[-1]:.3g}/s"
    assert {line.split()[0] for line in lines[1:3]} == {"fcfs", "continuum"}
    assert max(map(len, lines)) <= 80


def test_the_numbers_are_printed_at_the_rate_of_the_answer_or_in_full_at_all(
    run: Path, report: Report
) -> None:
    brief, full = (
        {point.amount for table in report.tables(full) if isinstance(table, ResultTable)
         for point in table.points} for full in (False, True)
    )  # fmt: skip
    assert len(brief) == 1
    assert full == set(found_in(run).rates)


def test_during_a_search_the_capacities_found_so_far_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.sweep.progress.INTERVAL_S", 0.0)
    run_sweep(search_plan("fcfs,continuum"), tmp_path / "run", workers=1)
    found = {each.variant: each.load for each in found_in(tmp_path / "run").found}
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("so far in jobs/s: ")]
    assert lines[0].startswith(f"so far in jobs/s: fcfs {value_of(found['fcfs'])}")
    assert set(lines[-1].removeprefix("so far in jobs/s: ").split(", ")) == {
        f"{name} {value_of(each)}" for name, each in found.items()
    }


def value_of(estimate: Estimate | None) -> str:
    assert estimate is not None
    return f"{estimate.value:.3g}"


def test_a_condition_on_capacities_is_evaluated(report: Report) -> None:
    fcfs, continuum = (each.load for each in report.result.capacities)
    assert fcfs is not None
    assert continuum is not None
    ratio = continuum.value / fcfs.value
    for factor, holds in ((0.99 * ratio, True), (1.01 * ratio, False)):
        condition = parse_condition(f"capacity(continuum) >= {factor} * capacity(fcfs)")
        assert evaluate(condition, report.result, report.points).holds is holds


def killed_at_times(work: Work, cell: Cell, tick: Tick) -> None:
    run_cell(work, cell, tick)
    if cell.seed == 2 and cell.variant == "continuum":
        (work.folder / cell.name / "done.json").unlink()
        raise RuntimeError("killed")


def test_an_interrupted_search_ends_with_the_bytes_of_an_uninterrupted_one(
    run: Path, tmp_path: Path
) -> None:
    plan = search_plan("fcfs,continuum", seeds=(1, 2))
    assert run_sweep(plan, tmp_path / "auto", workers=1, run=killed_at_times).failed
    assert cells_of(tmp_path / "auto") < cells_of(run)
    assert not run_sweep(plan, tmp_path / "auto", workers=2).failed
    assert contents(tmp_path / "auto") == contents(run)


def test_a_finished_search_runs_nothing_again(run: Path) -> None:
    outcome = run_sweep(search_plan("fcfs,continuum", seeds=(1, 2)), run, workers=1, run=never)
    assert not outcome.failed
    assert outcome.found_done == outcome.cells == len(cells_of(run))


def test_another_folder_takes_the_cells_of_a_search_and_says_so_once(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "runs/first")
    second = Path("runs/second")
    run_sweep(search_plan(seeds=(1, 2)), second, workers=1)
    taken = {path.parent.name for path in second.glob("*/taken_from.json")}
    assert taken == cells_of(second) < cells_of(run)
    took = [line for line in capsys.readouterr().err.splitlines() if "finished cell" in line]
    same = "with the same settings from runs/first"
    assert took == [f"bench: took {len(taken)} finished cells {same}"]


def test_a_users_rates_run_as_given_beside_the_search(tmp_path: Path) -> None:
    run_sweep(search_plan(jps=(0.3, 0.5)), tmp_path / "run", workers=1)
    assert cells_of(tmp_path / "run") > {"fcfs_jps0.3_seed1", "fcfs_jps0.5_seed1"}
    found = found_in(tmp_path / "run")
    assert found.rates == (0.3, 0.5)
    assert found.found[0].kind is Kind.FOUND


@pytest.mark.parametrize("slo", ["mean<=1s", "mean<=2x,p95<=0.9x"])
def test_an_slo_that_an_idle_machine_does_not_meet_is_refused_and_leaves_no_folder(
    slo: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as error:
        run_sweep(search_plan(slo=slo), tmp_path / "run", workers=1)
    assert mentions(str(error.value), f"--slo '{slo}'", "idle machine", "looser limit")
    assert not (tmp_path / "run").exists()


def test_an_idle_machine_is_measured_once_for_each_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def counted(plan: SweepPlan, seed: int, folder: Path) -> Times:
        measured.append(seed)
        return idle_times(plan, seed, folder)

    monkeypatch.setattr(search, "idle_times", counted)
    plan = search_plan(seeds=(1, 2), slo="mean<=1000s")
    assert plan.slo is not None
    folder = tmp_path / "run"
    CapacitySearch("", Work(plan, folder, refuse_unreachable(plan, folder)), plan.slo, reuse=False)
    assert sorted(measured) == [1, 2]


def test_an_slo_that_only_an_idle_machine_meets_is_never_sustained(tmp_path: Path) -> None:
    run_sweep(search_plan(slo="mean<=1x"), tmp_path / "run", workers=1)
    assert found_in(tmp_path / "run").found[0].kind is Kind.NEVER
    assert write_report(tmp_path / "run").answer[0].startswith("No scheduler sustains any rate on")


def test_an_slo_that_everything_meets_at_any_rate_ends_and_says_up_to_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that mostly wait for a tool of an hour: 64 of them at a time hardly ever meet. A search
    goes to 4,096, which takes minutes."""
    monkeypatch.setattr(loads, "MOST_JOBS", 64.0)
    plan = search_plan()
    jobs = tuple(
        replace(program, turns=(replace(program.turns[0], tool_gap_s=3600.0), program.turns[1]))
        for program in plan.workload.programs
    )
    idle = replace(plan, workload=replace(plan.workload, programs=jobs))
    run_sweep(idle, tmp_path / "run", workers=1)
    assert found_in(tmp_path / "run").found[0].kind is Kind.ALWAYS
    answer = write_report(tmp_path / "run").answer[0]
    assert mentions(answer, "fcfs", "mean<=2x", "every rate")
    assert "up to 0.01" in answer


def test_the_report_of_a_very_loose_slo_reads_it_again(tmp_path: Path) -> None:
    """The queue alone then decides."""
    run_sweep(search_plan(slo="mean<=1000000x"), tmp_path / "run", workers=1)
    found = found_in(tmp_path / "run")
    assert found.found[0].kind is Kind.FOUND
    assert str(found.slo) == "mean<=1000000x"


def test_a_workload_of_one_job_has_a_capacity(tmp_path: Path) -> None:
    plan = search_plan()
    one = replace(plan, workload=replace(plan.workload, programs=plan.workload.programs[:1]))
    run_sweep(one, tmp_path / "run", workers=1)
    assert found_in(tmp_path / "run").found[0].kind is Kind.FOUND


def test_jobs_without_gaps_have_a_capacity(tmp_path: Path) -> None:
    """All tool gaps are zero, so a job is never between two turns."""
    plan = search_plan()
    jobs = tuple(
        replace(program, turns=tuple(replace(turn, tool_gap_s=0.0) for turn in program.turns))
        for program in plan.workload.programs
    )
    without = replace(plan, workload=replace(plan.workload, programs=jobs))
    run_sweep(without, tmp_path / "run", workers=1)
    assert found_in(tmp_path / "run").found[0].kind is Kind.FOUND


def settings(**values: Any) -> SweepSettings:
    load = {name: values.pop(name) for name in ("arrivals", "once") if name in values}
    machine = {name: values.pop(name) for name in ("engine",) if name in values}
    return SweepSettings(load=Load(**load), machine=Machine(**machine), **values)


def test_capacities_are_searched_where_a_steady_state_is_measured() -> None:
    plan = resolve(settings(jps="0.2"))
    assert (str(plan.slo), plan.amounts, plan.seeds) == ("mean<=2x", (0.2,), (1, 2, 3))
    assert resolve(settings(jps="auto")).amounts == ()
    assert resolve(settings()).amounts == ()
    assert len(resolve(settings(no_capacity=True)).amounts) == 9
    assert resolve(settings(jps="0.2", no_capacity=True)).slo is None
    once = resolve(settings(jps="0.2", once=True))
    assert (once.slo, once.seeds) == (None, (1,))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"jps": "auto", "once": True},
            "--jps auto: needs jobs that go on arriving, and with --once the jobs are a fixed set; "
            "remove --once, or give rates, such as --jps 0.1,0.3",
        ),
        (
            {"slo": "mean<=3x", "arrivals": "closed:4"},
            "--slo 'mean<=3x': needs jobs that go on arriving, and with --arrivals closed:4 the "
            "jobs are a fixed set; remove --slo",
        ),
        (
            {"slo": "mean<=3x", "jps": "0.1", "no_capacity": True},
            "--slo 'mean<=3x': needs a search for capacities, which --no-capacity and --one "
            "leave out; remove --slo",
        ),
        (
            {"jps": "auto", "no_capacity": True},
            "--jps auto: needs a search for capacities, which --no-capacity and --one leave "
            "out; give a rate, such as --jps 0.1",
        ),
        (
            {"slo": "mean<3x", "jps": "0.1", "no_capacity": True},
            "--slo 'mean<3x': 'mean<3x' is not STATISTIC<=VALUE; use for example 'mean<=2x' or "
            "'ttft_p95<=5s,speed_p90>=30'",
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        resolve(settings(**given))
    assert str(error.value) == message


def test_fail_unless_names_the_policy_that_was_probably_meant() -> None:
    code, _, err = bench(
        "sweep", "--jps", "0.2", "--policies", "fcfs,continuum",
        "--fail-unless", "capacity(continum) > 1",
    )  # fmt: skip
    assert code == 2
    assert mentions(err, "--fail-unless 'capacity(continum) > 1'", "did you mean continuum?\n")
