"""Sweeps of traces that lack token counts or tool times: the options, and what the run records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.load.settings import Load, Reading
from harness.load.workload import Longest, load_workload
from tests.harness.in_process import bench
from tests.sentences import mentions
from tests.traces.span_samples import bfcl
from tests.traces.test_token_counts import conversation, words
from traces.synthesis.known import FOLDER

SWEEP = ("sweep", "--once", "--jps", "1", "--policies", "fcfs", "--no-capacity")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "result.json").write_bytes(bfcl())
    shutil.copy(FOLDER / "mini-swe-agent.toml", tmp_path / "mine.toml")


def workload(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "sweep.json").read_text())["workload"]
    return found


def test_a_sweep_draws_the_tool_times_that_a_file_does_not_record(tmp_path: Path) -> None:
    code, _, err = bench(*SWEEP, "--traces", "result.json", "--out", "no")
    assert code == 2
    assert mentions(err, "not recorded", "--synthesise-gaps RECIPE")
    options = ("--traces", "result.json", "--synthesise-gaps", "mine.toml")
    code, _, err = bench(*SWEEP, *options, "--out", "one")
    assert code == 0, err
    assert workload(tmp_path / "one")["gap_provenance"] == {"synthesised": 1}
    assert 'synthesise-gaps = "mine.toml"' in (tmp_path / "one/sweep.toml").read_text()


def test_a_sweep_says_if_no_tool_time_had_to_be_drawn() -> None:
    unused = "bench: --synthesise-gaps bfcl has no effect: no tool time had to be drawn\n"
    options = ("--synthesise-gaps", "bfcl", "--programs", "3")
    code, _, err = bench(*SWEEP, "--traces", "result.json", *options, "--out", "one")
    assert code == 0
    assert "no effect" not in err
    code, _, err = bench(*SWEEP, "--traces", "swe-bench", *options, "--out", "two")
    assert code == 0
    assert unused in err


def test_the_settings_of_a_run_read_the_same_programs_again(tmp_path: Path) -> None:
    options = ("--traces", "result.json", "--synthesise-gaps", "mine.toml", "--out", "one")
    assert bench(*SWEEP, *options)[0] == 0
    code, _, err = bench("sweep", "one/sweep.toml", "--out", "again")
    assert code == 0, err
    one, again = (
        next((tmp_path / name).rglob("turns.jsonl.zst")).read_bytes() for name in ("one", "again")
    )
    assert one == again


def test_a_sweep_resumes_with_the_same_recipe_and_refuses_another_one(tmp_path: Path) -> None:
    options = ("--traces", "result.json", "--out", "one")
    assert bench(*SWEEP, *options, "--synthesise-gaps", "mine.toml")[0] == 0
    shutil.move("mine.toml", "moved.toml")
    code, _, err = bench(*SWEEP, *options, "--synthesise-gaps", "moved.toml")
    assert code == 0, err
    before = workload(tmp_path / "one")
    code, _, err = bench(*SWEEP, *options, "--synthesise-gaps", "claude-code")
    assert code == 2
    assert workload(tmp_path / "one") == before
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--synthesise-gaps", "nothing"), "--synthesise-gaps: no recipe 'nothing'; known are"),
        (("--tokenizer", "no.json"), "--tokenizer no.json: cannot be read"),
        (("--tokenizer", "result.json"), "--tokenizer result.json: not a tokenizers file"),
    ],
)
def test_invalid_options_are_refused_before_anything_runs(
    tmp_path: Path, options: tuple[str, str], message: str
) -> None:
    pytest.importorskip("tokenizers")
    code, out, err = bench(*SWEEP, "--traces", "result.json", *options, "--out", "run")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "run").exists()


def test_a_workload_counts_text_by_the_tokenizer_whose_contents_are_part_of_its_hash(
    tmp_path: Path,
) -> None:
    (tmp_path / "c.jsonl").write_bytes(conversation(60))
    tokenizer = words(tmp_path)

    def loaded(reading: Reading) -> tuple[int, str]:
        load = Load(traces=("c.jsonl",), reading=reading)
        found = load_workload(load, Longest(None, "none"))
        return found.programs[0].turns[0].prompt_tokens, found.trace_sha256

    counted, counted_sha256 = loaded(Reading(tokenizer=tokenizer))
    estimated, estimated_sha256 = loaded(Reading())
    assert (counted, estimated) == (60, 91)  # 300 characters / 3.3
    assert counted_sha256 != estimated_sha256
    tokenizer.write_text(tokenizer.read_text().replace("[UNK]", "[unk]"))
    assert loaded(Reading(tokenizer=tokenizer))[1] != counted_sha256
