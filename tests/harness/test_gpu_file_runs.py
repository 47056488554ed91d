"""A run with a GPU from a file: the contents of the file decide its cells, and it can be repeated
after the file has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small import GPU, contents, programs

from tests.harness.in_process import bench
from tests.profiles.test_measured import measured
from tests.sentences import mentions
from traces.formats.native import write_programs

FCFS = "fcfs_jps0.5_seed1"
LOAD = ("--once", "--traces", "three.jsonl", "--policies", "fcfs", "--jps", "0.5")
SWEEP = ("sweep", *LOAD, "--hardware", "my-gpu.toml", "--out")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_programs(tmp_path / "three.jsonl", programs(3))
    Path("my-gpu.toml").write_text(GPU)
    return Path("my-gpu.toml")


def run(*command: str) -> str:
    code, _, err = bench(*command)
    assert code == 0, err
    return err


def read(path: str) -> dict[str, Any]:
    return dict(json.loads(Path(path).read_text()))


def test_the_run_folder_records_what_the_file_says() -> None:
    run(*SWEEP, "one")
    for record in (read("one/sweep.json"), read(f"one/{FCFS}/cell.json")):
        assert (record["hardware"], record["profile"]["hardware"]) == ("my-gpu", "my-gpu")
        assert record["gpu"]["bf16_flops"] == 300e12
        assert record["gpu"]["price_usd_per_hour"] == 1.2
    assert Path("one/gpu.toml").read_text() == f'name = "my-gpu"\n{GPU}'


def test_sweep_toml_repeats_the_run_after_the_file_has_changed_and_gone(file: Path) -> None:
    run(*SWEEP, "one")
    file.write_text(GPU.replace("300 TFLOP/s", "200 TFLOP/s"))
    run("sweep", "one/sweep.toml", "--out", "two")
    file.unlink()
    run("sweep", "two/sweep.toml", "--out", "three")
    cells = [
        {name: data for name, data in contents(Path(folder)).items() if "/" in name}
        for folder in ("one", "two", "three")
    ]
    assert cells[0] == cells[1] == cells[2]
    assert Path("three/gpu.toml").read_bytes() == Path("one/gpu.toml").read_bytes()


def test_sweep_toml_repeats_a_run_on_a_profile_file_after_the_file_has_gone(tmp_path: Path) -> None:
    profile = tmp_path / "here.json"
    profile.write_text(measured().model_dump_json())
    run("sweep", *LOAD, "--hardware", "here.json", "--out", "one")
    profile.unlink()
    run("sweep", "one/sweep.toml", "--out", "two")
    assert contents(Path("one") / FCFS) == contents(Path("two") / FCFS)


def test_other_contents_under_the_same_path_are_another_cell(file: Path) -> None:
    run(*SWEEP, "runs/one")
    before = read(f"runs/one/{FCFS}/done.json")
    assert "took 1 finished cell" in run(*SWEEP, "runs/same")
    file.write_text(GPU.replace("300 TFLOP/s", "200 TFLOP/s"))
    assert "took" not in run(*SWEEP, "runs/two")
    assert read(f"runs/two/{FCFS}/done.json") != before
    code, _, err = bench(*SWEEP, "runs/one")
    assert code == 2
    assert mentions(err, "gpu.bf16_flops is 300000000000000.0, now 200000000000000.0")
    assert Path("runs/one/gpu.toml").read_text() == f'name = "my-gpu"\n{GPU}'


def test_the_same_contents_under_another_path_are_the_same_cell(file: Path) -> None:
    file.write_text(f'name = "ours"\n{GPU}')
    run(*SWEEP, "runs/one")
    file.rename("moved.toml")
    command = ("sweep", *LOAD, "--hardware", "moved.toml", "--out", "runs/two")
    assert "took 1 finished cell" in run(*command)


def test_a_settings_file_can_name_it_and_its_errors_are_one_line(file: Path) -> None:
    Path("s.toml").write_text('policies="fcfs"\njps="0.5"\nonce=true\ntraces=["three.jsonl"]\n'
                              'hardware="my-gpu.toml"\n')  # fmt: skip
    run("sweep", "s.toml", "--out", "one")
    assert read("one/sweep.json")["hardware"] == "my-gpu"
    file.write_text(GPU.replace("TFLOP/s", "TFLOP"))
    code, out, err = bench("sweep", "s.toml", "--out", "two")
    assert (code, out) == (2, "")
    assert mentions(err, "s.toml: my-gpu.toml: bf16", "'300 TFLOP'", "'TFLOP'", '"989 TFLOP/s"\n')
    assert len(err.splitlines()) == 1
    assert not Path("two").exists()


def test_a_policy_over_an_offload_tier_gets_the_files_host_memory(file: Path) -> None:
    file.write_text(GPU + 'host-memory = "64 GB"\n')
    run(*[word.replace("fcfs", "continuum+") for word in SWEEP], "one")
    cell = read("one/continuum+_jps0.5_seed1/cell.json")
    assert cell["offload"]["dram_gb"] == 64.0
