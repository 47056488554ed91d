"""`bench history` on run folders and on baselines saved by `bench compare`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.in_process import bench


@pytest.mark.usefixtures("run")
def test_runs_are_added_shown_and_drawn() -> None:
    added = (0, "history.jsonl: 2 added for c1\n", "")
    assert bench("history", "add", "run", "--label", "c1") == added
    assert bench("history", "add", "run", "--label", "c1") == (
        0, "history.jsonl: c1 was added before\n", "",
    )  # fmt: skip
    bench("history", "add", "run", "--label", "c2", "--when", "2099-01-01T00:00:00Z")
    code, out, err = bench("history", "show")
    assert (code, err) == (0, "")
    head, *rows = [line.split("\t") for line in out.splitlines()]
    assert head == ["load", "policy", "commits", "mean JCT", "change", "jumps at"]
    assert [(row[0], row[1], row[2], row[4], row[5]) for row in rows] == [
        ("0.2 jobs/s", "fcfs", "2 commits", "+0.00%", "–"),
        ("0.2 jobs/s", "continuum", "2 commits", "+0.00%", "–"),
    ]
    assert bench("history", "draw", "--out", "pages/trend.html") == (
        0, "page: pages/trend.html\n", "",
    )  # fmt: skip
    assert Path("pages/trend.html").stat().st_size > 500_000  # plotly is inside


@pytest.mark.usefixtures("run")
def test_a_run_and_its_saved_baseline_are_the_same_commit() -> None:
    bench("compare", "run", "--save", "base.json.gz")
    bench("history", "add", "run", "--label", "c1")
    code, out, err = bench("history", "add", "base.json.gz", "--label", "c1")
    assert (code, out) == (0, "history.jsonl: c1 was added before\n"), err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "nowhere", "--label", "c"], "nowhere: no such folder"),
        (["add", "run", "--label", "c", "--when", "noon"], "--when noon: use a time, e.g."),
        (
            ["add", "run", "--label", "c", "--file", "run/sweep.json"],
            "run/sweep.json: not a history",
        ),
        (["add", "run", "--label", ""], "--label '': give a name on one line"),
        (["add", "run", "--label", "a\tb"], r"--label 'a\\tb': give a name on one line"),
        (["show", "--file", "nowhere"], "nowhere: no such file"),
        (["draw", "--file", "run/sweep.json"], "run/sweep.json: not a history"),
    ],
)
@pytest.mark.usefixtures("run")
def test_invalid_arguments_are_refused_in_one_line(arguments: list[str], message: str) -> None:
    code, out, err = bench("history", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
