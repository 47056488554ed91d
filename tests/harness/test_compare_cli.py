"""`bench compare` on run folders and on saved baselines."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.harness.in_process import bench

SWEEP = "sweep --once --jps 0.2 --policies fcfs,continuum --programs 10"
POLICY = """
from servers.policies.fcfs import Fcfs

class Mine(Fcfs):
    name = "mine"

    def rank(self, request, now_s):
        return (not request.preempted, {sign}request.arrival_s, request.id)
"""


@pytest.fixture
def run(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished_run, "one")


@pytest.mark.usefixtures("run")
def test_a_repeated_sweep_is_exactly_identical() -> None:
    bench(*SWEEP.split(), "--out", "two")
    found = bench("compare", "one", "two")
    assert found == (0, "all 4 numbers are identical\n", "bench: page: two/compare.html\n")
    assert (
        '<h1 id="answer">All 4 numbers are identical.</h1>' in Path("two/compare.html").read_text()
    )


@pytest.mark.usefixtures("run")
def test_a_saved_baseline_is_equivalent_to_its_run() -> None:
    code, out, _ = bench("compare", "one", "--save", "base.json.gz")
    assert code == 0
    assert out.startswith("baseline: base.json.gz, ")
    assert out.endswith(" bytes, 20 jobs\n")
    assert Path("base.json.gz").stat().st_size < 5_000
    assert bench("compare", "base.json.gz", "one")[0] == 0
    bench("compare", "one", "--save", "again.json.gz")
    assert Path("again.json.gz").read_bytes() == Path("base.json.gz").read_bytes()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("base", "new"), [("one", "two"), ("two", "one")])
def test_a_damaged_cell_on_either_side_is_named_and_fails(base: str, new: str) -> None:
    shutil.copytree("one", "two")
    (turns,) = Path("two").glob("continuum*/turns.jsonl")
    turns.write_bytes(turns.read_bytes().replace(b"1", b"2", 1))
    code, out, err = bench("compare", base, new)
    assert (code, out) == (1, "no regression, but 1 invalid cell\n")
    assert (
        f"not valid: {turns.parent.name}: {turns}: differs from its checksum in SHA256SUMS; run the"
        " same bench sweep again, which repeats this cell\n" in err
    )


def test_a_changed_policy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for out, sign in (("one", ""), ("two", "-")):
        Path("mine.py").write_text(POLICY.format(sign=sign))
        code, _, err = bench(*SWEEP.replace("continuum", "mine:Mine").split(), "--out", out)
        assert code == 0, err
        del sys.modules["mine"]  # a process reads a policy's file once
    code, out, err = bench("compare", "one", "two", "--markdown", "c.md", "--junit", "j.xml")
    assert code in (0, 1), err
    assert "0.2 jobs/s\tmine\tjct.mean" in out
    assert "\tfcfs\t" not in out  # identical, so not listed
    assert Path("c.md").read_text().count("| mine |") == 2
    assert Path("j.xml").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one"], "give NEW, the run to compare with BASE, or --save FILE, not both"),
        (["one", "nowhere"], "nowhere"),
        (["one", "one", "--metric", "jct.p42"], "--metric jct.p42: unknown; use jct.mean"),
        (["one", "one", "--max-regression", "lots"], "--max-regression lots: use a share, e.g."),
        (["one", "one/sweep.json"], "one/sweep.json: not a baseline"),
    ],
)
@pytest.mark.usefixtures("run")
def test_invalid_arguments_are_refused_in_one_line(arguments: list[str], message: str) -> None:
    code, out, err = bench("compare", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("run")
def test_runs_without_a_common_rate_are_not_comparable() -> None:
    other = SWEEP.replace("--jps 0.2", "--jps 0.3")
    bench(*other.split(), "--out", "two")
    code, _, err = bench("compare", "one", "two")
    assert code == 2
    assert "one and two: no job finished in both under the same policy, load and seed" in err


@pytest.mark.usefixtures("run")
def test_runs_with_some_rates_and_policies_in_common_are_compared_at_these() -> None:
    other = "sweep --once --jps 0.2,0.3 --policies fcfs,infercept --programs 10"
    bench(*other.split(), "--out", "two")
    code, out, err = bench("compare", "one", "two", "--html", "page.html")
    assert (code, out) == (0, "all 2 numbers are identical\n")
    assert err == (
        "bench: in one run only: continuum (one)\n"
        "bench: in one run only: fcfs at 0.3 jobs/s (two)\n"
        "bench: in one run only: infercept (two)\n"
        "bench: page: page.html\n"
    )
    assert "<li>In one run only: infercept (two)</li>" in Path("page.html").read_text()
    assert bench("compare", "one", "two", "--identical")[0] == 1
