"""Sweeps with requests beside the jobs: files, resuming, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import bench

from tests.lines import read_lines
from tests.sentences import mentions

SMALL = ("sweep", "--once", "--programs", "4", "--jps", "0.5", "--policies", "fcfs,continuum")


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "chat.jsonl"
    rows = [{"timestamp": k, "input_length": 300 + k, "output_length": 9} for k in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def beside(run: str, cell: str) -> list[tuple[str, float]]:
    turns = read_lines(Path(run, cell, "turns.jsonl"))
    found = [(t["program_id"], t["scheduled_at_s"]) for t in turns if t.get("background")]
    return sorted(found, key=lambda request: request[1])


def test_all_policies_have_the_same_requests_at_the_same_times(requests: Path) -> None:
    code, out, _ = bench(*SMALL, "--background", f"{requests}@2", "--out", "run")
    assert code == 0
    assert mentions(out, "2 requests/s", "8 in chat.jsonl")
    one, other = (beside("run", f"{name}_jps0.5_seed1") for name in ("fcfs", "continuum"))
    common = min(len(one), len(other))
    assert common > 20
    assert one[:common] == other[:common]


def test_the_run_folder_records_it_and_runs_it_again(requests: Path) -> None:
    assert bench(*SMALL, "--background", f"{requests}@2", "--out", "run")[0] == 0
    sweep = json.loads(Path("run/sweep.json").read_text())
    assert sweep["background"].items() >= {
        "name": "chat.jsonl", "requests": 8, "requests_per_s": 2.0,
    }.items()  # fmt: skip
    assert f'background = "{requests}@2"' in Path("run/sweep.toml").read_text()
    assert bench("sweep", "run/sweep.toml", "--out", "again", "--fresh")[0] == 0
    for cell in ("fcfs_jps0.5_seed1", "continuum_jps0.5_seed1"):
        for name in ("cell.json", "turns.jsonl.zst", "numbers.json.zst", "done.json"):
            assert Path("run", cell, name).read_bytes() == Path("again", cell, name).read_bytes()
    code, _, err = bench(*SMALL, "--background", f"{requests}@2", "--out", "run")
    assert code == 0
    assert "2 of 2 cells were finished already" in err


def test_a_folder_has_one_background(requests: Path) -> None:
    assert bench(*SMALL, "--background", f"{requests}@2", "--out", "run")[0] == 0
    code, _, err = bench(*SMALL, "--background", f"{requests}@3", "--out", "run")
    assert code == 2
    assert mentions(err, "background.requests_per_s is 2.0, now 3.0")
    code, _, err = bench(*SMALL, "--out", "run")
    assert code == 2
    assert "(background is {" in err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("chat.jsonl", "--background 'chat.jsonl': give a file and requests per second"),
        ("chat.jsonl@0", "the rate '0' is not within"),
        ("gone.jsonl@1", "--background gone.jsonl: no such file"),
        ("swe-bench@1", "and background requests are single turns without sessions"),
    ],
)
def test_invalid_backgrounds_end_with_one_line(requests: Path, option: str, message: str) -> None:
    code, _, err = bench(*SMALL, "--background", option, "--out", "run")
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert not Path("run").exists()
    assert requests.exists()


@pytest.mark.parametrize("command", [["sweep"], ["sweep", "--one"]])
def test_a_second_background_is_refused(requests: Path, command: list[str]) -> None:
    one, two = ("--background", f"{requests}@1"), (f"--background={requests}@2",)
    code, _, err = bench(*command, *one, "--jps", "0.5", *two, "--out", "run")
    assert code == 2
    assert mentions(err, "--background", "twice", "remove one")
    assert len(err.splitlines()) == 1
    assert not Path("run").exists()


def test_real_agents_have_no_background(requests: Path) -> None:
    code, _, err = bench(
        "sweep", "--agent-command", "true {task}", "--engine", "http://127.0.0.1:9", "--jps", "1",
        "--background", f"{requests}@1",
    )  # fmt: skip
    assert code == 2
    assert mentions(err, "--background", "not real agents; remove it")
