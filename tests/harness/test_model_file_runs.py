"""A run with a model from its config.json: the run folder keeps a copy, and can be repeated after
the config has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small import contents, programs

from servers.profiles import MODELS
from tests.harness.in_process import bench
from tests.sentences import mentions
from traces.formats.native import write_programs

FCFS = "fcfs_jps0.5_seed1"
LOAD = ("--once", "--traces", "three.jsonl", "--policies", "fcfs", "--jps", "0.5")
SWEEP = ("sweep", *LOAD, "--hardware", "h100", "--model", "Mine-8B", "--out")


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_programs(tmp_path / "three.jsonl", programs(3))
    path = tmp_path / "Mine-8B/config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(dict(MODELS["qwen3-8b"].config)))
    return path


def run(*command: str) -> str:
    code, out, err = bench(*command)
    assert code == 0, err
    return out


def read(path: str) -> dict[str, Any]:
    return dict(json.loads(Path(path).read_text()))


def test_the_run_has_the_results_of_the_listed_model_under_the_folders_name() -> None:
    shown = run(*SWEEP, "mine")
    assert mentions(shown, "Mine-8B", "1 x h100")
    run("sweep", *LOAD, "--hardware", "h100", "--model", "qwen3-8b", "--out", "listed")
    ours, theirs = (read(f"{folder}/sweep.json") for folder in ("mine", "listed"))
    assert (ours["model"], ours["gpus"]) == ("Mine-8B", 1)
    assert ours["profile"] == {**theirs["profile"], "model": "Mine-8B"}
    turns = [Path(folder, FCFS, "turns.jsonl.zst").read_bytes() for folder in ("mine", "listed")]
    assert turns[0] == turns[1]


def test_programs_beyond_the_models_own_limit_need_another_model(config: Path) -> None:
    short = {**read(str(config)), "max_position_embeddings": 64}
    config.write_text(json.dumps(short))
    code, _, err = bench(*SWEEP, "short")
    assert code == 2
    assert mentions(err, "64 that Mine-8B accepts", "longer context, or shorter programs\n")


def test_sweep_toml_repeats_the_run_after_the_config_has_changed_and_gone(config: Path) -> None:
    run(*SWEEP, "one")
    config.write_text(json.dumps({**read(str(config)), "num_hidden_layers": 18}))
    run("sweep", "one/sweep.toml", "--out", "two")
    config.unlink()
    run("sweep", "two/sweep.toml", "--out", "three")
    cells = [
        {name: data for name, data in contents(Path(folder)).items() if "/" in name}
        for folder in ("one", "two", "three")
    ]
    assert cells[0] == cells[1] == cells[2]
    assert Path("three/model.json").read_bytes() == Path("one/model.json").read_bytes()


def test_profile_show_takes_a_config(config: Path) -> None:
    code, shown, err = bench("profile", "--show", "--hardware", "h100", "--model", str(config))
    assert (code, shown.splitlines()[0]) == (0, "Mine-8B on 1 x h100, operator-table profile")
    assert "by default Mine-8B runs on 1 x h100" in err
