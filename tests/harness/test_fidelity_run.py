"""`bench fidelity` from the command to the card, with virtual time in place of the live engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import programs
from typer.testing import CliRunner

import harness.cli.run_from_settings
from harness.cli.main import app
from harness.load.settings import Execution, Machine, Server, SweepSettings
from tests.profiles.test_measured import measured
from tests.sentences import mentions
from tests.servers.substitute_vllm import substitute_vllm
from traces.formats.native import write_programs

COMMAND = (
    "fidelity --traces three.jsonl --policies fcfs,continuum --jps 0.5,1 --seeds 1,2 "
    "--kv-blocks 100 --repeats 2 --workers 1 --out card"
)


class SimulatedMachine:
    """Replaces profile measurements by a fixed profile, and live sweeps by virtual time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: dict[str, SweepSettings] = {}
        self.measured: list[Machine] = []
        monkeypatch.setattr("harness.cli.measure_profile.measure_profile", self.measure)
        monkeypatch.setattr("harness.cli.commands.fidelity.run_from_settings", self.run)

    def measure(self, machine: Machine, server: Server, **options: Any) -> None:
        self.measured.append(machine)
        options["out"].write_text(measured().model_dump_json())

    def run(
        self,
        settings: SweepSettings,
        execution: Execution,
        arguments: Sequence[str],
    ) -> tuple[Path, bool]:
        folder = execution.out
        assert folder is not None
        assert execution.fresh is (folder.name != "sim"), "a live repeat must not reuse cells"
        self.settings[folder.name] = settings
        machine = settings.machine
        if machine.engine == "vllm":
            blocks = None if machine.kv_blocks is None else machine.kv_blocks - 1
            machine = replace(machine, engine="sim", kv_blocks=blocks)
            settings = replace(settings, machine=machine, server=Server())
        outcome = harness.cli.run_from_settings.run_from_settings(settings, execution, arguments)
        if folder.name.startswith("live"):
            path = folder / "sweep.json"
            sweep = json.loads(path.read_text()) | {"engine": "vllm", "virtual_time": None}
            path.write_text(json.dumps(sweep))
        return outcome


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedMachine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURNSTILE_VLLM_PYTHON", substitute_vllm(tmp_path, "healthy"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_programs(tmp_path / "three.jsonl", programs(3))
    return SimulatedMachine(monkeypatch)


def test_bench_fidelity_measures_a_profile_runs_both_sweeps_and_compares_them(
    machine: SimulatedMachine,
) -> None:
    result = CliRunner().invoke(app, COMMAND.split())
    assert result.exit_code == 1, result.output  # two rates are too few
    assert list(machine.settings) == ["sim", "live-1", "live-2"]
    assert {path.name for path in Path("card").iterdir()} == {
        *("profile.json", "sim", "live-1", "live-2", "fidelity.html", "fidelity.json"),
    }
    card = json.loads(Path("card/fidelity.json").read_text())
    assert card["live_repeats"] == 2
    assert len(card["cells"]) == 2 * 2 * 2
    assert {cell["mean_error"] for cell in card["cells"]} == {0.0}
    assert {cell["mean_spread"] for cell in card["cells"]} == {0.0}
    # Nothing contends here, so that no policy differs and there is no ranking to judge.
    assert [check["held"] for check in card["checks"]] == [True, True, True, None, False, True]


def test_both_sweeps_have_the_same_memory_context_length_and_profile(
    machine: SimulatedMachine,
) -> None:
    CliRunner().invoke(app, COMMAND.split())
    live, virtual = machine.settings["live-1"].machine, machine.settings["sim"].machine
    assert machine.settings["live-2"] == machine.settings["live-1"]
    assert (live.engine, virtual.engine) == ("vllm", "sim")
    assert live.hardware == virtual.hardware == "card/profile.json"
    # One of vLLM's 100 blocks is its null block; 99 of 32 tokens hold the longest context.
    assert (live.kv_blocks, virtual.kv_blocks) == (100, 99)
    assert virtual.max_model_len == 99 * 32
    assert live.model == virtual.model == "tiny"


def test_an_existing_or_given_profile_is_not_measured_again(machine: SimulatedMachine) -> None:
    CliRunner().invoke(app, COMMAND.split())
    CliRunner().invoke(app, COMMAND.split())
    (once,) = machine.measured
    assert once.kv_blocks is None  # the pool for measuring is as large as it can be

    Path("here.json").write_text(measured(machine="another").model_dump_json())
    other = [*COMMAND.split()[:-1], "other", "--hardware", "here.json"]
    assert CliRunner().invoke(app, other).exit_code == 1
    assert len(machine.measured) == 1
    assert Path("other/profile.json").read_bytes() == Path("here.json").read_bytes()

    clash = CliRunner().invoke(app, [*COMMAND.split(), "--hardware", "here.json"])
    assert clash.exit_code == 2
    assert mentions(clash.stderr, "--out card", "here.json")


def test_without_kv_blocks_both_sweeps_have_the_measured_number(machine: SimulatedMachine) -> None:
    CliRunner().invoke(app, COMMAND.replace("--kv-blocks 100 ", "").split())
    blocks = measured().kv_blocks
    assert machine.settings["live-1"].machine.kv_blocks == blocks
    assert machine.settings["sim"].machine.kv_blocks == blocks - 1


@pytest.mark.usefixtures("machine")
def test_the_default_folder_is_named_after_the_settings() -> None:
    result = CliRunner().invoke(app, COMMAND.replace(" --out card", "").split())
    line = result.stdout.splitlines()[-1]
    assert line.startswith("fidelity card: runs/fidelity_three.jsonl_")


def test_a_command_without_rates_says_what_it_would_run_and_measures_nothing(
    machine: SimulatedMachine,
) -> None:
    """Five policies at the papers' nine rates; jobs of the lowest arrive for minutes."""
    result = CliRunner().invoke(app, ["fidelity", "--traces", "three.jsonl"])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert mentions(line, "--jps", "0.05..0.9", "45 cells", "18 minutes")
    assert machine.measured == []
