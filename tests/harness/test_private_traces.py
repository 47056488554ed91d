"""A sweep of a person's sessions: the command, and what the run says of where they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.in_process import bench
from tests.traces.samples import SAMPLES
from tests.traces.test_claude_code import SECRETS, private_history

SWEEP = ("sweep", "--once", "--jps", "1", "--policies", "fcfs", "--no-capacity", "--out", "run")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_traces_can_be_arguments_of_a_sweep(tmp_path: Path) -> None:
    for name, data in SAMPLES["claude-code"].files.items():
        (tmp_path / name).write_bytes(data)
    code, out, err = bench(*SWEEP, "a.jsonl", "b.jsonl")
    assert code == 0, err
    assert out.splitlines()[1].startswith("claude-code sessions: 2 programs, 3 turns;")
    settings = (tmp_path / "run/sweep.toml").read_text()
    assert 'traces = [\n    "a.jsonl",\n    "b.jsonl",\n]' in settings


def test_an_argument_that_is_no_file_is_refused() -> None:
    code, _, err = bench(*SWEEP, "no-such-folder")
    assert code == 2
    assert "no-such-folder" in err


@pytest.mark.parametrize("option", [["--traces"], []])
def test_only_the_settings_of_a_run_name_the_folder_of_a_private_history(
    tmp_path: Path, option: list[str]
) -> None:
    project = private_history(tmp_path) / "-home-ada-acme"
    code, out, err = bench(*SWEEP[:1], *option, str(project), *SWEEP[1:])
    assert code == 0, err
    run = tmp_path / "run"
    texts = {path.name: path.read_text() for path in run.rglob("*.*") if path.is_file()}
    assert str(project) in texts.pop("sweep.toml")
    everything = "\n".join([*texts.values(), out.replace(str(tmp_path), "")])
    assert [secret for secret in (*SECRETS, "-home-ada") if secret in everything] == []
    argv = json.loads(texts["sweep.json"])["made_by"]["argv"]
    assert argv == ["bench", "sweep", *option, "TRACES", *SWEEP[1:]]
