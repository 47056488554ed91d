"""A settings file is equivalent to its options on the command line, or is refused in one line."""

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
from servers.basics.errors import InvalidInput
from servers.basics.redact import REDACTED
from tests.harness.in_process import bench
from traces.formats.native import write_programs

OPTIONS = (
    "--once --traces three.jsonl --policies fcfs,continuum --jps 0.5 --kv-blocks 200 --seeds 1,2"
)
ONE = ("sweep", "--one")
FILE = """
once = true
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


def cells_of(*command: str) -> dict[str, bytes]:
    """Run a command; return the files of its cells, without those about the run as a whole."""
    code, _, err = bench(*command)
    assert code == 0, err
    files = contents(Path(command[-1]))
    return {name: data for name, data in files.items() if "/" in name}


def test_a_settings_file_gives_the_same_cells_as_its_options() -> None:
    Path("mine.toml").write_text(FILE)
    cells = cells_of("sweep", "mine.toml", "--out", "from-file")
    assert len({name.partition("/")[0] for name in cells}) == 4
    assert cells == cells_of("sweep", *OPTIONS.split(), "--out", "from-options")
    settings = [Path(out, "sweep.toml").read_bytes() for out in ("from-file", "from-options")]
    assert settings[0] == settings[1]


def test_the_settings_file_of_a_run_folder_gives_the_same_cells() -> None:
    cells = cells_of("sweep", *OPTIONS.split(), "--out", "first")
    assert cells_of("sweep", "first/sweep.toml", "--out", "elsewhere") == cells
    assert Path("first/sweep.toml").read_bytes() == Path("elsewhere/sweep.toml").read_bytes()


def test_one_cell_can_be_repeated_from_its_settings_file_or_that_of_its_sweep() -> None:
    one = cells_of(*ONE, *OPTIONS.partition(" --policies")[0].split(), "--policies", "continuum",
              "--jps", "0.5", "--seeds", "2", "--kv-blocks", "200", "--out", "one")  # fmt: skip
    assert cells_of(*ONE, "one/sweep.toml", "--out", "again") == one
    assert cells_of("sweep", "one/sweep.toml", "--out", "as-sweep") == one
    cells_of("sweep", *OPTIONS.split(), "--out", "all")
    chosen = ("--policies", "continuum", "--seeds", "2")
    from_sweep = cells_of(*ONE, "all/sweep.toml", *chosen, "--out", "one-of-all")
    assert from_sweep.keys() == one.keys()
    assert from_sweep[turns := "continuum_jps0.5_seed2/turns.jsonl.zst"] == one[turns]


def test_an_option_on_the_command_line_overrides_the_file() -> None:
    Path("mine.toml").write_text(FILE + 'out = "from-file"\nworkers = 1\n')
    code, _, err = bench("sweep", "mine.toml", "--policies", "fcfs", "--seeds", "3")
    assert code == 0, err
    cells = [path.name for path in Path("from-file").iterdir() if path.is_dir()]
    assert cells == ["fcfs_jps0.5_seed3"]


def test_relative_paths_are_relative_to_the_current_directory() -> None:
    Path("deeper").mkdir()
    Path("deeper/mine.toml").write_text(FILE)
    cells_of("sweep", "deeper/mine.toml", "--out", "o")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('polices = "fcfs"', "polices is 'fcfs': unknown; did you mean policies?"),
        ("qqq = 1", "qqq is 1: unknown; bench sweep --help lists the options"),
        ("[load]\njps = '1'", "load is a table: not supported; remove it"),
        ('programs = "3"', "programs is '3': must be a valid integer"),
        ("programs = 2.5", "programs is 2.5: must be a valid integer"),
        ("programs = true", "programs is true: must be a valid integer"),
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
            "is true: give --i-know-this-runs-model-commands-on-my-machine on the command line",
        ),
        (
            f"vllm-flags = ['--api-key', '{REDACTED}']",
            "vllm_flags is redacted",
        ),
        ("jps", "not TOML: "),
        ("'\x00' = 1", "not TOML: "),
        ("jps = " + "[" * 5000, "(nested too deeply|not TOML)"),
        # Errors that only appear once all settings are resolved.
        ("jps = 'fast'", "--jps 'fast'"),
        ("policies = 'contineum'", "no policy is called 'contineum'.*continuum"),
        ("hardware = 'a100-80'", "--hardware a100-80: unknown; did you mean a100-80g"),
        ("router = 'sticky'", "--router sticky: distributes turns over several replicas; add"),
        ("prompts = 'text'", "--prompts: not supported by --engine sim; remove it"),
        ("seeds = '5..1'", "--seeds '5..1': the range is reversed"),
        ("sandbox = 'none'\nagent = 'openhands'\nengine = 'vllm'\ntasks = 't'", ""),
    ],
)
def test_an_invalid_settings_file_is_named_in_one_line_and_starts_nothing(
    line: str, message: str
) -> None:
    Path("mine.toml").write_text(line)
    before = sorted(os.listdir())
    code, out, err = bench("sweep", "mine.toml")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert re.match(f"bench: mine.toml: .*{message}", err), err
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.toml", "nowhere.toml: no such file"),
        ("folder.toml", "folder.toml: is not a regular file"),
        ("latin.toml", "latin.toml: not TOML: "),
    ],
)
def test_an_unreadable_settings_file_is_refused_in_one_line(name: str, message: str) -> None:
    Path("folder.toml").mkdir()
    Path("latin.toml").write_bytes('jps = "0,5 \xe9"'.encode("latin-1"))
    code, out, err = bench("sweep", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"bench: {message}")
    assert len(err.splitlines()) == 1


def test_an_error_in_an_option_does_not_name_the_settings_file() -> None:
    Path("mine.toml").write_text(FILE)
    _, _, err = bench("sweep", "mine.toml", "--jps", "fast")
    assert err.startswith("bench: --jps 'fast'")


def test_a_secret_is_not_written_and_its_placeholder_is_refused() -> None:
    server = Server(vllm_flags=("--api-key", "sk-abcdefgh12345678"))
    agents = Agents(agent_command="run {task} --token sk-abcdefgh12345678")
    settings = SweepSettings(server=server, agents=agents)
    written = settings_toml(settings)
    assert b"sk-abc" not in written
    Path("mine.toml").write_bytes(written)
    with pytest.raises(InvalidInput, match=r"agent_command is redacted|vllm_flags is redacted"):
        read_settings(Path("mine.toml"))
    read_settings(Path("mine.toml"), overridden={"vllm_flags", "agent_command"})


def test_written_settings_are_read_back_unchanged() -> None:
    settings = SweepSettings(
        jps="0.1",
        baseline="fcfs",
        machine=Machine(engine="vllm", model='a "b"\\ü\x7f\n', offload_gb=1.5, gpus=2),
        server=Server(mount=(Path("/a b"), Path("c")), vllm_flags=("--x", "1"), replicas=2),
        agents=Agents(guided=True, agent_disk_gb=0.5),
    )
    Path("mine.toml").write_bytes(settings_toml(settings))
    assert build(SweepSettings, read_settings(Path("mine.toml"))) == settings


def test_settings_of_server_and_agents_are_written_only_if_not_default() -> None:
    written = tomllib.loads(settings_toml(SweepSettings()).decode())
    assert {"policies": "all", "engine": "sim", "watermark": 0.0, "once": False}.items() <= (
        written.items()
    )
    optional = [*settings_of(Server).values(), *settings_of(Agents).values()]
    assert not written.keys() & {each.flag.removeprefix("--") for each in optional}


def test_consent_to_run_without_a_sandbox_is_never_written() -> None:
    agents = Agents(i_know_this_runs_model_commands_on_my_machine=True)
    written = settings_toml(replace(SweepSettings(), agents=agents))
    assert b"i-know" not in written


def test_option_names_are_unique() -> None:
    groups = [SweepSettings, Execution]
    names = [name for group in groups for name in values_of(group())]
    assert len(names) == len(set(names)) == sum(len(settings_of(group)) for group in groups)
