"""A settings file gives what the same options on the command line give, or one line."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from small import contents, programs

from harness.load.option import build, settings_of, values_of
from harness.load.settings import Agents, Execution, Machine, Server, SweepSettings
from harness.load.settings_file import read_settings, settings_toml
from harness.redact import REDACTED
from servers.errors import InvalidInput
from tests.harness.in_process import bench
from traces.formats.native import write_programs

OPTIONS = "--traces three.jsonl --policies fcfs,continuum --jps 0.5 --kv-blocks 200 --seeds 1,2"
FILE = """
traces = ["three.jsonl"]
policies = "fcfs,continuum"
jps = "0.5"
kv-blocks = 200
seeds = "1,2"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TURNSTILE_VLLM_PYTHON", raising=False)
    write_programs(tmp_path / "three.jsonl", programs(3))
    return tmp_path


def ran(*command: str) -> dict[str, bytes]:
    """The cells of the run folder that the command fills, without where and how it was run."""
    code, _, err = bench(*command)
    assert code == 0, err
    found = contents(Path(command[-1]))
    return {name: data for name, data in found.items() if "/" in name}


def test_a_file_gives_the_cells_of_the_same_options() -> None:
    Path("mine.toml").write_text(FILE)
    cells = ran("sweep", "mine.toml", "--out", "from-file")
    assert len({name.partition("/")[0] for name in cells}) == 4
    assert cells == ran("sweep", *OPTIONS.split(), "--out", "from-options")
    settings = [Path(out, "sweep.toml").read_bytes() for out in ("from-file", "from-options")]
    assert settings[0] == settings[1]


def test_the_file_of_a_run_folder_gives_the_same_cells_again() -> None:
    cells = ran("sweep", *OPTIONS.split(), "--out", "first")
    assert ran("sweep", "first/sweep.toml", "--out", "elsewhere") == cells
    assert Path("first/sweep.toml").read_bytes() == Path("elsewhere/sweep.toml").read_bytes()


def test_a_run_of_one_cell_is_repeated_from_its_file_and_from_that_of_its_sweep() -> None:
    one = ran("run", *OPTIONS.partition(" --policies")[0].split(), "--policy", "continuum",
              "--jps", "0.5", "--seed", "2", "--kv-blocks", "200", "--out", "one")  # fmt: skip
    assert ran("run", "one/sweep.toml", "--out", "again") == one
    assert ran("sweep", "one/sweep.toml", "--out", "as-sweep") == one
    ran("sweep", *OPTIONS.split(), "--out", "all")
    chosen = ("--policy", "continuum", "--seed", "2")
    of_all = ran("run", "all/sweep.toml", *chosen, "--out", "one-of-all")
    assert of_all.keys() == one.keys()
    assert of_all[turns := "continuum_jps0.5_seed2/turns.jsonl"] == one[turns]


def test_an_option_on_the_command_line_overrides_the_file() -> None:
    Path("mine.toml").write_text(FILE + 'out = "from-file"\nworkers = 1\n')
    code, _, err = bench("sweep", "mine.toml", "--policies", "fcfs", "--seeds", "3")
    assert code == 0, err
    cells = [path.name for path in Path("from-file").iterdir() if path.is_dir()]
    assert cells == ["fcfs_jps0.5_seed3"]


def test_relative_paths_are_relative_to_the_current_directory() -> None:
    Path("deeper").mkdir()
    Path("deeper/mine.toml").write_text(FILE)
    ran("sweep", "deeper/mine.toml", "--out", "o")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('polices = "fcfs"', "polices is 'fcfs': unknown; did you mean policies?"),
        ("qqq = 1", "qqq is 1: unknown; bench sweep --help lists the options"),
        ("[load]\njps = '1'", "load is a table: not supported; remove it"),
        ('programs = "3"', "programs is '3': must be a valid integer"),
        ("programs = 2.5", "programs is 2.5: must be a valid integer"),
        ("programs = true", "programs is True: must be a valid integer"),
        ("programs = 0", "programs is 0: must be at least 1"),
        ("jps = 0.3", 'jps is 0.3: must be a valid string, e.g. "0.3"'),
        ("traces = 'three.jsonl'", "traces is 'three.jsonl': must be a valid "),
        ("overlong = 'keep'", "overlong is 'keep': must be 'drop' or 'refuse'"),
        ("offload-gb = nan", "offload-gb is nan: must be a finite number"),
        ("agent-config = 'nowhere'", "agent-config is 'nowhere': no such file or folder"),
        ("agent-config = '.'", "agent-config is '.': is a folder; give a file"),
        ("gpus = 1\n'gpus ' = 2", "'gpus ' is 2: unknown; did you mean gpus?"),
        ("kv_blocks = 1\nkv-blocks = 2", "kv-blocks is 2: given twice; remove one"),
        (
            "i-know-this-runs-model-commands-on-my-machine = true",
            "is True: give --i-know-this-runs-model-commands-on-my-machine on the command line",
        ),
        (
            f"vllm-flags = ['--api-key', '{REDACTED}']",
            "vllm_flags is redacted",
        ),
        ("jps", "not TOML: "),
        ("'\x00' = 1", "not TOML: "),
        ("jps = " + "[" * 5000, "(nested too deeply|not TOML)"),
        # What only the whole of the settings shows.
        ("jps = 'fast'", "--jps 'fast'"),
        ("policies = 'contineum'", "no policy is called 'contineum'.*continuum"),
        ("hardware = 'a100-80'", "--hardware a100-80: unknown; did you mean a100-80g"),
        ("replicas = 2", "--replicas: not supported by --engine sim; remove it"),
        ("seeds = '5..1'", "--seeds '5..1': the range is reversed"),
        ("sandbox = 'none'\nagent = 'openhands'\nengine = 'vllm'\ntasks = 't'", ""),
    ],
)
def test_an_invalid_file_is_one_line_that_names_it_and_starts_nothing(line: str, told: str) -> None:
    Path("mine.toml").write_text(line)
    before = sorted(os.listdir())
    code, out, err = bench("sweep", "mine.toml")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert re.match(f"bench: mine.toml: .*{told}", err), err
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere.toml", "nowhere.toml: no such file"),
        ("folder.toml", "folder.toml: is not a regular file"),
        ("latin.toml", "latin.toml: not TOML: "),
    ],
)
def test_what_is_no_file_of_settings_is_one_line(name: str, told: str) -> None:
    Path("folder.toml").mkdir()
    Path("latin.toml").write_bytes('jps = "0,5 \xe9"'.encode("latin-1"))
    code, out, err = bench("sweep", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"bench: {told}")
    assert len(err.splitlines()) == 1


def test_an_error_of_the_command_line_does_not_name_the_file() -> None:
    Path("mine.toml").write_text(FILE)
    _, _, err = bench("sweep", "mine.toml", "--jps", "fast")
    assert err.startswith("bench: --jps 'fast'")


def test_a_secret_is_neither_in_the_file_nor_read_back_from_it() -> None:
    server = Server(vllm_flags=("--api-key", "sk-abcdefgh12345678"))
    agents = Agents(agent_command="run {task} --token sk-abcdefgh12345678")
    settings = SweepSettings(server=server, agents=agents)
    written = settings_toml(settings)
    assert b"sk-abc" not in written
    Path("mine.toml").write_bytes(written)
    with pytest.raises(InvalidInput, match=r"agent_command is redacted|vllm_flags is redacted"):
        read_settings(Path("mine.toml"))
    read_settings(Path("mine.toml"), overridden={"vllm_flags", "agent_command"})


def test_what_is_written_is_what_is_read() -> None:
    settings = SweepSettings(
        jps="0.1",
        baseline="fcfs",
        machine=Machine(engine="vllm", model='a "b"\\ü\x7f\n', offload_gb=1.5, gpus=2),
        server=Server(mount=(Path("/a b"), Path("c")), vllm_flags=("--x", "1"), replicas=2),
        agents=Agents(guided=True, agent_disk_gb=0.5),
    )
    Path("mine.toml").write_bytes(settings_toml(settings))
    assert build(SweepSettings, read_settings(Path("mine.toml"))) == settings


def test_of_server_and_agents_only_what_differs_is_written() -> None:
    written = tomllib.loads(settings_toml(SweepSettings()).decode())
    assert written == {
        "policies": "all",
        "seeds": "1",
        "arrivals": "poisson",
        "overlong": "drop",
        "engine": "sim",
        "ssd-gb": 0.0,
        "max-num-seqs": 256,
        "step-tokens": 2048,
    }


def test_the_risk_of_no_sandbox_is_taken_on_the_command_line_only() -> None:
    agents = Agents(i_know_this_runs_model_commands_on_my_machine=True)
    written = settings_toml(replace(SweepSettings(), agents=agents))
    assert b"i-know" not in written


def test_no_two_options_have_one_name() -> None:
    groups = [SweepSettings, Execution]
    names = [name for group in groups for name in values_of(group())]
    assert len(names) == len(set(names)) == sum(len(settings_of(group)) for group in groups)
