"""`bench compare` on run folders and on saved baselines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.in_process import bench

SWEEP = "sweep --jps 0.2 --policies fcfs,continuum --programs 20"
POLICY = """
from servers.policies.fcfs import Fcfs

class Mine(Fcfs):
    name = "mine"

    def rank(self, request, now_s):
        return (not request.preempted, {sign}request.arrival_s, request.id)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = bench(*SWEEP.split(), "--out", "one")
    assert code == 0, err


@pytest.mark.usefixtures("run")
def test_a_repeated_sweep_is_exactly_identical() -> None:
    bench(*SWEEP.split(), "--out", "two")
    assert bench("compare", "one", "two") == (0, "all 4 numbers are identical\n", "")


@pytest.mark.usefixtures("run")
def test_a_saved_baseline_is_equivalent_to_its_run() -> None:
    code, out, _ = bench("compare", "one", "--save", "base.json.gz")
    assert code == 0
    assert out.startswith("baseline: base.json.gz, ")
    assert out.endswith(" bytes, 40 jobs\n")
    assert Path("base.json.gz").stat().st_size < 5_000
    assert bench("compare", "base.json.gz", "one")[0] == 0
    bench("compare", "one", "--save", "again.json.gz")
    assert Path("again.json.gz").read_bytes() == Path("base.json.gz").read_bytes()


def test_a_changed_policy_is_found(tmp_path: Path) -> None:
    """The sweeps run in separate processes, since each reads a policy's file once."""
    command = [str(Path(sys.executable).parent / "bench"), *SWEEP.split()]
    command[command.index("fcfs,continuum")] = "fcfs,mine:Mine"
    for out, sign in (("one", ""), ("two", "-")):
        (tmp_path / "mine.py").write_text(POLICY.format(sign=sign))
        subprocess.run([*command, "--out", out], cwd=tmp_path, check=True, capture_output=True)
    files = ("--markdown", "c.md", "--junit", "j.xml")
    compared = subprocess.run(
        [command[0], "compare", "one", "two", *files],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert compared.returncode in (0, 1), compared.stderr
    assert "0.2 jobs/s\tmine\tjct.mean" in compared.stdout
    assert "\tfcfs\t" not in compared.stdout  # identical, so not listed
    assert (tmp_path / "c.md").read_text().count("| mine |") == 2
    assert (tmp_path / "j.xml").read_bytes().startswith(b"<?xml")


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
def test_runs_at_different_rates_are_not_comparable() -> None:
    other = SWEEP.replace("--jps 0.2", "--jps 0.3")
    bench(*other.split(), "--out", "two")
    code, _, err = bench("compare", "one", "two")
    assert code == 2
    assert "one and two have different settings: jps [0.2] and [0.3]" in err
