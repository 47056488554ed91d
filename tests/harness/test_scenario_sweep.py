"""Sweeps with a published scenario: what they report, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pandas as pd
import pytest
from in_process import bench
from msgspec import structs
from small import contents, programs, run_sweep, small_plan

from harness.load.arrivals import parse_arrivals
from harness.load.scenario import SCENARIOS
from harness.sweep.plan import SweepPlan
from reports import write_report
from reports.compare.baseline import read_side
from reports.compare.regression import compare_sides
from reports.metrics.cells import collect
from reports.metrics.interactivity import scenario_points
from reports.run_folder.read import load_run
from reports.run_folder.turns import read_columns
from servers.basics.errors import InvalidInput, NotComparable
from tests.sentences import mentions
from tools.agentx import document
from traces import Program, Turn
from traces.formats.native import write_programs


def scenario_plan() -> SweepPlan:
    """Return AgentX with a window of two minutes for one and for two agents."""
    return replace(
        small_plan("fcfs,turnstile"),
        arrivals=parse_arrivals("agents"),
        arrivals_text="agents",
        amounts=(1.0, 2.0),
        seeds=(42,),
        steady=True,
        scenario=structs.replace(SCENARIOS["agentx"], window_s=120.0),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "agentx"
    assert not run_sweep(scenario_plan(), folder, workers=1).failed
    return folder


def test_interactivity_and_tokens_count_the_requests_of_the_window(run: Path) -> None:
    (cell,) = (cell for cell in load_run(run).cells if cell.key == ("fcfs", 2.0, 42))
    window, turns = cell.done.window, read_columns(cell)
    assert window is not None
    assert window.from_s is not None
    speeds, tokens = [], 0
    for at_s, sent_s, end_s, prompt, output in zip(
        *(turns[f"{name}_at_s"].tolist() for name in ("scheduled", "sent", "finished")),
        *(turns[f"{name}_tokens"].tolist() for name in ("prompt", "output")),
        strict=True,
    ):
        if at_s >= window.from_s:
            speeds.append(output / (end_s - sent_s))
            tokens += (prompt + output) * (end_s < window.from_s + 120)
    rows = collect(load_run(run)).cells.set_index("cell")
    row = rows.loc[cell.folder.name]
    assert 10 < len(speeds) < len(turns["sent_at_s"])
    assert row["interactivity_p50"] == pytest.approx(median(speeds), rel=0.02)
    slowest = sorted(speeds)[len(speeds) // 10]
    assert row["interactivity_p90"] == pytest.approx(slowest, rel=0.02)
    assert row["tokens_per_s_per_gpu"] == pytest.approx(tokens / 120)
    broken = "window 2 min, at least 15 min", "3 sessions", "393", "virtual time"
    assert mentions(row["broken_rules"], *broken)


def test_the_report_has_the_picture_of_the_field_and_no_jct(run: Path) -> None:
    report = write_report(run)
    assert mentions(report.answer[0], "agentx with 2 agents")
    assert mentions(report.answer[1], "Not comparable", "window 2 min")
    page = report.path.read_text()
    assert mentions(page, "Tokens per second and GPU", "interactivity")
    assert mentions(page, "agentx", "window of 2 min")
    assert not report.failed_gates
    assert report.points == []
    assert "vs fcfs" not in page  # no column of dashes
    assert 'data-variant="turnstile"' in page  # the names of the lines


def test_without_a_cell_there_is_no_point() -> None:
    assert scenario_points(pd.DataFrame([])) == []


def test_runs_with_a_scenario_have_no_jct_to_compare(run: Path, tmp_path: Path) -> None:
    message = "measures requests and no jobs (--scenario), so it has no JCTs to compare"
    for other in ([str(run)], ["--save", f"{tmp_path}/base.json.gz"]):
        code, _, stderr = bench("compare", str(run), *other)
        assert (code, message in stderr) == (2, True), stderr
    one, other = read_side(run), read_side(run)
    other.settings["scenario"] = {**one.settings["scenario"], "window_s": 60.0}
    with pytest.raises(NotComparable, match=r"different settings: scenario: window_s; "):
        compare_sides(one, other, ["jct.mean"], 0.05)


def test_the_results_in_the_documentation_state_the_rules_of_their_runs(run: Path) -> None:
    found = document([run])
    assert (found["scenario"], found["window_s"], found["seeds"]) == ("agentx", 120.0, [42])
    assert [(row["variant"], row["agents"]) for row in found["rows"]] == [
        ("fcfs", 1), ("fcfs", 2), ("turnstile", 1), ("turnstile", 2),
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match="give sweeps with the same scenario"):
        document([])


def test_results_replace_those_of_the_same_policy_on_the_same_machine_only(run: Path) -> None:
    found = document([run])
    other = {**found["rows"][0], "model": "another"}
    again = document([run], {**found, "rows": [*found["rows"], other]})
    assert again["rows"] == [*found["rows"], other]
    with pytest.raises(InvalidInput, match="has other rules than these sweeps"):
        document([run], {**found, "seeds": [43]})


def test_a_scenario_gives_the_same_bytes_again(run: Path, tmp_path: Path) -> None:
    run_sweep(scenario_plan(), tmp_path / "again", workers=1, reuse=False)
    assert contents(tmp_path / "again").items() <= contents(run).items()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--scenario agentxx --agents 2", "--scenario agentxx: unknown; did you mean agentx?"),
        ("--scenario agentx --agents 2 --once", "--once: --scenario agentx measures a window"),
        ("--scenario agentx --agents 2 --jps 0.1", "--jps 0.1: --scenario agentx has a number of"),
        (
            "--scenario agentx --arrivals closed:2",
            "--arrivals closed:2: --scenario agentx keeps a number of --agents at work; remove one",
        ),
        ("--scenario agentx", "--scenario agentx: give the --agents at work"),
        (
            "--scenario agentx --agents 2 --api-price 0.5,5,25",
            "--api-price 0.5,5,25: --scenario agentx has no jobs to price",
        ),
        (
            "--scenario agentx --agents 2 --until 5%",
            "--until 5%: needs a search for capacities; remove --scenario agentx",
        ),
        (
            "--scenario agentx --agents 2 --policies fcfs-tuned",
            "fcfs-tuned: needs JCTs or a search for capacities; remove --scenario agentx",
        ),
        (
            "--scenario agentx --agents 2 --slo mean<=2x",
            "--slo 'mean<=2x': --scenario agentx measures given numbers of --agents",
        ),
        (
            "--scenario agentx --agents 2 --horizon 24h,5000",
            "--horizon 24h,5000: --scenario agentx has a window of time; give one such as 15min",
        ),
    ],
)
def test_options_that_contradict_a_scenario_are_refused(
    options: str, line: str, tmp_path: Path
) -> None:
    write_programs(tmp_path / "good.jsonl", programs(3))
    code, _, stderr = bench("sweep", "--traces", f"{tmp_path}/good.jsonl", *options.split())
    assert (code, line in stderr) == (2, True), stderr


def test_a_workload_without_sessions_is_refused(tmp_path: Path) -> None:
    single = [Program(f"r{n}", (Turn(100, 5),)) for n in range(3)]
    write_programs(tmp_path / "single.jsonl", single)
    trace, scenario = f"{tmp_path}/single.jsonl", ("--scenario", "agentx", "--agents", "2")
    code, _, stderr = bench("sweep", "--traces", trace, *scenario)
    assert code == 2
    assert mentions(stderr, "single.jsonl", "no sessions")
