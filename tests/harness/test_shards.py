"""`bench sweep --shard K/N` runs a share of the cells into a folder that all shards share."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import bench
from small import contents, programs, small_plan

from harness.cells.locks import Shard, locked, parse_shard
from harness.engines.base import engine_kind
from harness.sweep.folder import claimed
from harness.sweep.plan import SweepPlan
from harness.sweep.shards import cells_of_shard, refuse_shard
from reports.capacity.slo import DEFAULT_SLO, parse_slo
from servers.basics.errors import InvalidInput
from tests.sentences import mentions
from traces.formats.native import write_programs

SWEEP = (
    *("sweep", "--once", "--traces", "t.jsonl", "--policies", "fcfs,continuum"),
    *("--jps", "0.5,0.7", "--out", "run"),
)


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_programs(tmp_path / "t.jsonl", programs(3))


@given(st.lists(st.integers(), max_size=50, unique=True), st.integers(1, 60))
def test_shards_divide_the_cells_evenly_and_run_each_once(cells: list[int], count: int) -> None:
    shares = [Shard(number, count).share(cells) for number in range(1, count + 1)]
    assert sorted(cell for share in shares for cell in share) == sorted(cells)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_a_shard_gets_other_policies_in_each_round() -> None:
    # Rounds of three cells, each of which begins with the next shard.
    cells = ["a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3", "a4"]
    assert Shard(1, 3).share(cells) == ["a1", "c2", "b3", "a4"]
    assert Shard(2, 3).share(cells) == ["b1", "a2", "c3"]
    assert Shard(3, 3).share(cells) == ["c1", "b2", "a3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("17/16", "--shard 17/16: the number must be from 1 to 16"),
        ("0/16", "--shard 0/16: the number must be from 1 to 16"),
        ("1/0", "--shard 1/0: must be of 1 to 10,000 shards"),
        ("3", "--shard '3': give a number and a count, such as 3/16"),
        ("-1/4", "--shard '-1/4': give a number and a count, such as 3/16"),
        ("1/4/5", "--shard '1/4/5': give a number and a count, such as 3/16"),
    ],
)
def test_a_malformed_shard_is_refused_before_anything_runs(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse_shard(text)
    assert str(raised.value) == message
    assert bench(*SWEEP, f"--shard={text}") == (2, "", f"bench: {message}\n")
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--jps 0.5 --policies fcfs",
            "a search for capacities chooses its cells by the results of others; add --no-capacity",
        ),
        ("--until 5%", "--until needs the cells of all shards; give it to the same command"),
        (
            "--once --fail-unless mean_jct(fcfs,at=0.5)<=9",
            "--fail-unless needs the cells of all shards",
        ),
    ],
)
def test_what_needs_the_cells_of_other_shards_is_refused(options: str, message: str) -> None:
    shard = ("--shard", "1/2", "--out", "run")
    code, out, err = bench("sweep", "--traces", "t.jsonl", *shard, *options.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"bench: --shard 1/2: {message}")
    assert not Path("run").exists()


def test_a_shard_needs_the_folder_that_all_share() -> None:
    code, out, err = bench("sweep", "--traces", "t.jsonl", "--no-capacity", "--shard", "1/2")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert mentions(err, "--shard 1/2", "add --out")
    assert not Path("runs").exists()


def test_all_shards_and_a_report_give_the_folder_of_one_sweep() -> None:
    code, _, err = bench(*SWEEP)
    assert code == 0, err
    straight = contents(Path("run"))
    Path("run").rename("straight")
    ends = []
    for number in (2, 3, 1):
        code, out, err = bench(*SWEEP, "--shard", f"{number}/3")
        assert code == 0, err
        ends.append(out.splitlines()[-1])
    # Four cells: the fourth begins the second round, which begins with the second shard.
    assert mentions(ends[0], "shard 2/3", "2 of 4 cells", "2 of the sweep")
    assert mentions(ends[1], "shard 3/3", "1 of 4 cells", "1 of the sweep")
    assert mentions(ends[2], "shard 1/3", "1 of 4 cells", "finished", "bench report run")
    assert not Path("run/report.html").exists()
    assert bench("report", "run")[0] == 0
    assert contents(Path("run")) == straight


def test_the_report_of_some_shards_says_how_many_cells_there_are_and_nothing_as_final() -> None:
    bench(*SWEEP, "--shard", "1/2")
    code, out, _ = bench("report", "run")
    done, cells = len(list(Path("run").glob("*/done.json"))), 4
    assert code == 1
    assert mentions(out, f"Unfinished: {done} of {cells} cells", "So far")
    assert "no variant to compare it with" not in out
    bench(*SWEEP, "--shard", "2/2")
    assert "Unfinished" not in bench("report", "run")[1]


def test_the_same_command_without_shard_runs_what_is_missing_and_writes_the_report() -> None:
    assert bench(*SWEEP, "--shard", "1/2")[0] == 0
    assert len(list(Path("run").glob("*/done.json"))) == 2
    code, _, err = bench(*SWEEP)
    assert code == 0
    assert "2 of 4 cells were finished already" in err
    assert Path("run/report.html").is_file()


def test_a_search_for_capacities_can_continue_a_folder_of_shards() -> None:
    given = replace(small_plan(), steady=True)
    searching = replace(given, slo=parse_slo(DEFAULT_SLO))
    with claimed(Path("run"), given.sweep_record(), {}, shard=Shard(1, 2)):
        pass
    with claimed(Path("run"), searching.sweep_record(), {}):
        assert json.loads(Path("run/sweep.json").read_text())["search"] == {"slo": "mean<=2x"}


def test_a_shard_without_cells_says_so_and_succeeds() -> None:
    code, out, err = bench(*SWEEP, "--shard", "9/16")
    assert code == 0, err
    assert mentions(out.splitlines()[-1], "shard 9/16", "no cells", "only 4", "4 of the sweep")
    assert sorted(path.name for path in Path("run").iterdir()) == ["sweep.json", "sweep.toml"]


def test_a_sweep_on_several_machines_is_divided_as_a_whole() -> None:
    machines = (*SWEEP, "--hardware", "a100-80g,h100")
    for number in (1, 2, 3):
        code, out, err = bench(*machines, "--shard", f"{number}/3")
        assert code == 0, err
        assert f"shard {number}/3: {[3, 2, 3][number - 1]} of 8 cells" in out
    assert bench("report", "run")[0] == 0


def test_the_recorded_command_is_that_of_all_shards() -> None:
    bench(*SWEEP, "--shard", "2/2")
    assert json.loads(Path("run/sweep.json").read_text())["made_by"]["argv"] == ["bench", *SWEEP]
    Path("run").rename("separate")
    bench(*SWEEP, "--shard=1/2")
    assert json.loads(Path("run/sweep.json").read_text())["made_by"]["argv"] == ["bench", *SWEEP]


def test_measurements_of_a_rate_and_seed_stay_in_one_shard() -> None:
    plan = replace(small_plan("fcfs,continuum,infercept", (0.5, 0.7)), seeds=(1, 2))
    live = replace(plan, engine=replace(plan.engine, kind=engine_kind("vllm")))
    for number in (1, 2, 3):
        cells = cells_of_shard({"": live}, Shard(number, 3))[""]
        together = Counter((cell.amount, cell.seed) for cell in cells)
        assert set(together.values()) == {3}
        names = {
            block: {c.variant for c in cells if (c.amount, c.seed) == block} for block in together
        }
        assert all(variants == {"fcfs", "continuum", "infercept"} for variants in names.values())


def test_a_running_server_is_not_shared_by_shards() -> None:
    plan = small_plan()
    at_url: SweepPlan = replace(
        plan, engine=replace(plan.engine, kind=engine_kind("http://127.0.0.1:9"))
    )
    with pytest.raises(InvalidInput, match="is one server"):
        refuse_shard(at_url, Shard(1, 2))


@pytest.mark.parametrize(
    "options",
    [("--shard", "1/2"), ("--shard", "1/3"), ()],
    ids=["the same shard", "a shard of another number", "the whole sweep"],
)
def test_while_a_shard_runs_its_cells_are_not_run_by_another_process(
    options: tuple[str, ...],
) -> None:
    Path("run").mkdir()
    with locked(Path("run"), Shard(1, 2)):
        code, _, err = bench(*SWEEP, *options)
        assert code == 2
        what = "another process runs shard 1/2 of it" if options else "another bench process is wri"
        assert what in err
        assert bench(*SWEEP, "--shard", "2/2")[0] == 0
    assert bench(*SWEEP, *options)[0] == 0
    assert not list(Path("run").glob(".*"))


def test_a_shard_on_another_machine_is_seen_by_its_lock_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels show the lock on a folder to this machine only."""
    Path("run").mkdir()
    with locked(Path("run"), Shard(1, 2)):
        monkeypatch.setattr("harness.cells.locks.lock_folder", lambda *_, **__: True)
        code, _, err = bench(*SWEEP)
        assert code == 2
        assert mentions(err, "run: another process", "shard 1/2")


def test_the_lock_file_of_a_killed_shard_hinders_nobody_and_goes() -> None:
    Path("run").mkdir()
    for name in (".shard-1-of-2.lock", ".shard-1-of-3.lock", ".plan.lock"):
        Path("run", name).touch()
    assert bench(*SWEEP, "--shard", "1/2")[0] == 0
    assert not list(Path("run").glob(".*"))
    Path("run", ".shard-2-of-2.lock").touch()
    assert bench(*SWEEP)[0] == 0
    assert not list(Path("run").glob(".*"))
