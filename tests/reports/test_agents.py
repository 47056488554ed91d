"""Cells of real agents in a report: how programs ended, which tasks they resolved, and caveats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports import write_report
from reports.figures.gantt import gantt
from reports.metrics.agents import keep_evaluation, unequal_work
from reports.run_folder.read import load_run
from servers.basics.errors import InvalidRunFolder
from tests.reports.make_run import turn, write_cell, write_lines, write_sweep
from tests.sentences import mentions

AGENT = {"name": "mini-swe-agent", "version": "2.4.6", "guided": False, "sandbox": None}
CELL = "fcfs_jps0.5_seed1"


def run_of_agents(folder: Path, *, guided: bool = False, more_turns: int = 0) -> Path:
    """Write a run of two programs of two turns; under continuum the first has `more_turns` more."""
    run = write_sweep(folder, ["fcfs", "continuum"], agent=AGENT | {"guided": guided})
    for variant, more in (("fcfs", 0), ("continuum", more_turns)):
        turns = [turn("a", i, float(i)) for i in range(2 + more)]
        turns += [turn("b", i, float(i)) for i in range(2)]
        cell = write_cell(run, variant, turns, engine="vllm")
        ends = (("a", "Submitted"), ("b#2", "LimitsExceeded"))
        write_lines(
            cell / "programs.jsonl",
            [{"program_id": id, "task_id": id[0], "exit_status": how} for id, how in ends],
        )
        write_lines(cell / "predictions.jsonl", [{"instance_id": id[0]} for id, _ in ends])
    return run


def test_agents_are_drawn_in_the_order_in_which_they_were_started(tmp_path: Path) -> None:
    turns = [turn("slow", 0, 3.0), turn("quick", 0, 2.0)]
    cell = write_cell(write_sweep(tmp_path, ["fcfs"]), "fcfs", turns)
    arrivals = {"slow": 1.0, "quick": 1.5, "without turns": 0.0, "never started": None}
    lines = [{"program_id": id, "arrival_s": at_s} for id, at_s in arrivals.items()]
    write_lines(cell / "programs.jsonl", lines)
    drawn = gantt({"fcfs": load_run(tmp_path).cells[0]})
    assert drawn is not None
    [decodes] = drawn.spec["data"]
    assert dict(zip(decodes["text"], decodes["y"], strict=True)) == {
        "slow, turn 0": 1,
        "quick, turn 0": 2,
    }


def test_the_page_shows_how_programs_ended(tmp_path: Path) -> None:
    run = run_of_agents(tmp_path / "run")
    page = write_report(run).path.read_text()
    assert "1 Submitted, 1 LimitsExceeded" in page
    assert "not evaluated" in page
    assert mentions(page, "mini-swe-agent 2.4.6, answers from the model, no sandbox")


def test_the_pass_rate_is_the_share_of_tasks_that_swe_bench_resolved(tmp_path: Path) -> None:
    run = run_of_agents(tmp_path / "run")
    (tmp_path / "evaluation.json").write_text(
        json.dumps({"resolved_ids": ["b", "z"], "schema_version": 2})
    )
    keep_evaluation(run, f"{CELL}={tmp_path / 'evaluation.json'}")
    assert "1 of 2 (50%)" in write_report(run).path.read_text()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("evaluation.json", "give CELL=FILE"),
        ("nowhere=evaluation.json", "with a cell of"),
        (f"../{CELL}=evaluation.json", "with a cell of"),
        (f"{CELL}=none.json", "no such file"),
        (f"{CELL}=bad.json", "not JSON"),
        (f"{CELL}=other.json", "has no list resolved_ids"),
        (f"{CELL}=foreign.json", "resolves none of the cell's tasks"),
    ],
)
def test_an_invalid_evaluation_is_refused(
    given: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of_agents(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    Path("evaluation.json").write_text('{"resolved_ids": []}')
    Path("bad.json").write_text("{")
    Path("other.json").write_text('{"resolved_ids": [1]}')
    Path("foreign.json").write_text('{"resolved_ids": ["zzz"]}')
    with pytest.raises(InvalidRunFolder, match="--evaluation") as refused:
        keep_evaluation(run, given)
    assert complaint in str(refused.value)


def test_cells_with_different_work_get_a_caveat_unless_guided(tmp_path: Path) -> None:
    for guided, has_caveat in ((False, True), (True, False)):
        run = run_of_agents(tmp_path / str(guided), guided=guided, more_turns=3)
        sentences = write_report(run).answer
        assert any("from 4 turns (fcfs" in sentence for sentence in sentences) is has_caveat
        assert any("to 7 (continuum" in sentence for sentence in sentences) is has_caveat


def test_cells_with_the_same_work_get_no_caveat(tmp_path: Path) -> None:
    run = load_run(run_of_agents(tmp_path / "same"))
    assert unequal_work(run) is None


def test_the_caveat_names_the_cells_with_the_least_and_the_most_turns(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs", "continuum", "autellix"], agent=AGENT)
    for variant, turns in (("fcfs", 3), ("continuum", 5), ("autellix", 2)):
        write_cell(run, variant, [turn("a", i, float(i)) for i in range(turns)], engine="vllm")
    caveat = unequal_work(load_run(run)) or ""
    assert mentions(caveat, "2 turns (autellix_jps0.5_seed1)", "5 (continuum_jps0.5_seed1)")


def test_an_exit_status_is_text_and_never_markup(tmp_path: Path) -> None:
    run = run_of_agents(tmp_path / "run")
    ends = [{"program_id": "a", "task_id": "a", "exit_status": "<script>alert(1)</script>"}]
    write_lines(run / CELL / "programs.jsonl", ends)
    assert "<script>alert(1)" not in write_report(run).path.read_text()
