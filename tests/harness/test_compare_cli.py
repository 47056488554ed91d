"""`bench compare` on run folders and on saved baselines."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.harness.in_process import bench
from tests.harness.small import damages
from tests.sentences import mentions

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
    (turns,) = Path("two").glob("continuum*/turns.jsonl.zst")
    turns.write_bytes(damages(turns.name)[0](turns.read_bytes()))
    code, out, err = bench("compare", base, new)
    assert (code, out) == (1, "no regression, but 1 invalid cell\n")
    damaged = f"not valid: {turns.parent.name}: {turns}"
    assert mentions(err, damaged, "SHA256SUMS", "run the same bench sweep")


def test_a_changed_policy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for out, sign in (("one", ""), ("two", "-")):
        Path("mine.py").write_text(POLICY.format(sign=sign))
        code, _, err = bench(*SWEEP.replace("continuum", "mine:Mine").split(), "--out", out)
        assert code == 0, err
        del sys.modules["mine"]  # a process reads a policy's file once
    code, out, err = bench("compare", "one", "two", "--markdown", "c.md")
    assert code in (0, 1), err
    assert "0.2 jobs/s\tmine\tjct.mean" in out
    assert "\tfcfs\t" not in out  # identical, so not listed
    assert Path("c.md").read_text().count("| mine |") == 2


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
    assert mentions(err, "one and two", "no load in common", "0.2 jobs/s", "0.3 jobs/s")


@pytest.mark.usefixtures("run")
def test_runs_with_some_rates_and_policies_in_common_are_compared_at_these() -> None:
    other = "sweep --once --jps 0.2,0.3 --policies fcfs,infercept --programs 10"
    bench(*other.split(), "--out", "two")
    code, out, err = bench("compare", "one", "two", "--html", "page.html")
    assert (code, out) == (0, "all 2 numbers are identical\n")
    once, page = err.splitlines()[:-1], err.splitlines()[-1]
    assert [line.partition("only: ")[2] for line in once] == [
        "continuum (one)",
        "fcfs at 0.3 jobs/s (two)",
        "infercept (two)",
    ]
    assert page == "bench: page: page.html"
    assert "<li>In one run only: infercept (two)</li>" in Path("page.html").read_text()
    assert bench("compare", "one", "two", "--identical")[0] == 1


JOBS = [{"prompt_tokens": 400, "output_tokens": 30}, {"prompt_tokens": 400, "output_tokens": 90}]
COLLAPSING = """
from servers.policies.fcfs import Fcfs

class Mine(Fcfs):
    name = "mine"

    def admit(self, request, free_tokens, now_s):
        return "run" if free_tokens > {tokens} else "stop"
"""
"""With 19,000 of 19,200 tokens free, a turn runs alone: the capacity is then about 1.4 jobs/s."""
OVERLOADED = (
    "sweep --traces jobs.jsonl --policies mine:Mine --kv-blocks 1200 --seeds 1..3 --no-capacity"
    " --horizon steady --jps 40"
)
NIGHTLY = f"{OVERLOADED},1.4,2"


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nights of a CI job, and between them a policy changed for the worse."""
    folder = tmp_path_factory.mktemp("nights")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        programs = [
            {"format": "turnstile-trace-1", "id": f"job-{k}", "turns": [turn]}
            for k, turn in enumerate(JOBS)
        ]
        Path("jobs.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in programs))
        for night, tokens in (("monday", 0), ("tuesday", 19_000)):
            Path("mine.py").write_text(COLLAPSING.format(tokens=tokens))
            for arguments in (f"{NIGHTLY} --out {night}", f"{OVERLOADED} --out {night}-40"):
                code, _, err = bench(*arguments.split())
                assert code == 0, err
            del sys.modules["mine"]  # a process reads a policy's file once
        assert bench("compare", "monday", "--save", "monday.json.gz")[0] == 0
        assert bench("compare", "monday-40", "--save", "monday-40.json.gz")[0] == 0
    return folder


def test_a_nightly_is_red_if_a_policy_collapses_with_all_seeds_or_one(
    nights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(nights)
    arguments = "compare monday.json.gz tuesday --metric jct.mean --markdown c.md"
    code, out, err = bench(*arguments.split())
    assert code == 1, err
    rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert [(row[0], *row[3:5], row[7]) for row in rows if row[2] == "steady state"] == [
        ("1.4 jobs/s", "stable", "2 of 3 seeds stable", "REGRESSION (seed 1)"),
        ("2 jobs/s", "stable", "no steady state", "REGRESSION"),
        ("40 jobs/s", "no steady state", "no steady state", "no steady state in either run"),
    ]
    (mean,) = (row for row in rows if row[2] == "jct.mean")
    assert mean[0] == "1.4 jobs/s"
    assert mean[7].endswith("(seeds 2 and 3)")
    assert mentions(out, "largest", "mine at 2 jobs/s", "stable, now no steady state")
    assert mentions(err, "no steady state in either run", "mine at 40 jobs/s\n")
    assert Path("c.md").read_text().startswith("### ❌ bench compare: ")
    assert "| stable | no steady state | – | – | REGRESSION |" in Path("c.md").read_text()
    assert "<td>no steady state</td>" in Path("tuesday/compare.html").read_text()


def test_a_baseline_without_job_times_is_saved_with_a_warning(
    nights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(nights)
    code, out, err = bench("compare", "monday-40", "--save", "again.json.gz")
    assert code == 0
    assert out.endswith(" bytes, 0 jobs, 3 unstable cells\n")
    assert mentions(err, "again.json.gz", "no job times", "monday-40")
    assert bench("compare", "monday", "--save", "again.json.gz")[2] == ""


def test_a_nightly_is_green_if_a_policy_gets_a_steady_state(
    nights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(nights)
    code, out, err = bench("compare", "tuesday", "monday", "--html", "page.html")
    assert code == 0, err
    rows = [line.split("\t") for line in out.splitlines()]
    (row,) = (row for row in rows if row[0] == "2 jobs/s" and "steady state" in row)
    assert row[3:] == ["no steady state", "stable", "–", "–", "now stable"]


def test_identical_compares_cells_without_a_steady_state(
    nights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(nights)
    assert bench("compare", "monday.json.gz", "monday", "--identical")[:2] == (
        0, "all 5 numbers are identical\n",
    )  # fmt: skip
    assert bench("compare", "monday-40.json.gz", "tuesday-40")[0] == 0
    arguments = "compare monday-40.json.gz tuesday-40 --identical --markdown c.md"
    code, out, err = bench(*arguments.split())
    assert code == 1
    assert mentions(out.splitlines()[-1], "not identical", "1 of 1 number", "3 cells")
    before, now = (
        json.loads(Path(f"{night}-40/mine_jps40_seed2/done.json").read_text())["finished_programs"]
        for night in ("monday", "tuesday")
    )
    differs = f"mine at 40 jobs/s, seed 2: ended with {before} and {now} finished programs"
    assert f"bench: not identical: {differs}\n" in err
    assert f"- not identical: {differs}\n" in Path("c.md").read_text()


@pytest.mark.usefixtures("run")
def test_a_refused_comparison_still_writes_the_files_for_ci_with_the_checks() -> None:
    shutil.copytree("one", "two")
    sweep = json.loads(Path("two/sweep.json").read_text())
    sweep["profile"]["kv_blocks"] -= 1
    Path("two/sweep.json").write_text(json.dumps(sweep))
    Path("two/fcfs_jps0.2_seed1/turns.jsonl.zst").write_text("")
    code, out, err = bench("compare", "one", "two", "--markdown", "c.md")
    assert (code, out) == (2, "")
    different = "one and two", "different settings", "profile: kv_blocks"
    assert mentions(err, *different)
    text = Path("c.md").read_text()
    assert "differs from its checksum" in text
    assert mentions(text.splitlines()[0], "### ❌ bench compare", *different[:2])
    assert "- not valid: fcfs&#95;jps0.2&#95;seed1: " in text
    assert mentions(text, "Valid", "1 of 2 cells")
    allowed = ("--allow-different", "profile.kv_blocks")
    code, out, err = bench("compare", "one", "two", *allowed)
    assert (code, out) == (1, "no regression, but 1 invalid cell\n")
    assert "bench: different settings: profile: kv_blocks\n" in err


@pytest.mark.usefixtures("run")
def test_a_run_that_cannot_be_read_still_writes_the_files_for_ci() -> None:
    assert bench("compare", "one", "nowhere", "--markdown", "c.md")[0] == 2
    assert mentions(Path("c.md").read_text(), "❌ bench compare", "nowhere", "no such folder")


def test_a_condition_on_a_policy_without_a_steady_state_fails_the_sweep(
    nights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(nights)
    monkeypatch.setattr(sys, "path", [*sys.path])
    again = f"{OVERLOADED} --out tuesday-40 --fail-unless".split()
    code, out, _ = bench(*again, "mean_jct(mine, at=40) <= 1000")
    assert code == 1
    assert mentions(out, "does not hold", "mean_jct(mine, at=40) is infinite")
    assert bench(*again, "mean_jct(mine, at=40) >= 1000")[0] == 0
    del sys.modules["mine"]
