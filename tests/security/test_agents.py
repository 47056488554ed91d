"""Attacks of model commands on the harness that runs them and on other programs."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agents.sandbox import files
from agents.sandbox.files import DiskUsage, LimitedQuantity, folder_usage
from agents.workspace import remove_workspace
from tests.agents.bubblewrap import needs_bubblewrap
from tests.agents.planner import planner
from tests.agents.sandbox.conftest import Boxed
from tests.agents.test_runs import CELL, WITHOUT_SANDBOX, begin, check_end, lines
from tests.crash.small_sweep import output_of
from tests.crash.trials import Warm
from tests.processes import wait_until
from tests.sentences import mentions

MIB = 1 << 20


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with planner() as url:
        yield url


def ends(folder: Path) -> dict[str, str]:
    return {end["program_id"]: end["error"] for end in lines(folder, "programs.jsonl")}


@needs_bubblewrap
def test_a_program_that_fills_the_disk_is_ended_and_the_others_continue(
    warm: Warm, tmp_path: Path, url: str
) -> None:
    """It writes many files, each below the limit of a file."""
    fill = (
        "for i in $(seq 1000); do head -c 4M /dev/zero > f$i || break; sleep 0.02; done; sleep 60"
    )
    begin(warm, tmp_path, url, {"a": [fill], "b": ["echo one"]}, "--agent-disk-gb", "0.1")
    assert warm.end() == 1
    found = ends(tmp_path)
    assert mentions(found.pop("a"), "0.1 GiB of files")
    assert found == {"b": None}
    assert not list((tmp_path / "o" / CELL / "agents").glob("*/workspace"))


def test_files_are_counted_only_if_the_disk_has_lost_enough_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[LimitedQuantity] = []

    def count(kind: LimitedQuantity) -> int | None:
        counted.append(kind)
        return folder_usage(tmp_path, kind)

    disk = {"f_blocks": 1000, "f_bfree": 1000, "f_frsize": MIB, "f_files": 10**6, "f_ffree": 10**6}
    monkeypatch.setattr(
        os, "statvfs", lambda _: os.statvfs_result((0, *map(disk.get, ORDER), 0, 0, 0, 0))
    )
    watched = DiskUsage(tmp_path, 100 * MIB, count)
    assert watched.exceeded_limit() is None
    assert counted == [LimitedQuantity.BYTES, LimitedQuantity.NUMBER], "at the start"
    disk["f_bfree"] = 910
    assert watched.exceeded_limit() is None
    assert len(counted) == 2, "at most 90 MiB can be ours"
    disk["f_bfree"] = 880
    assert watched.exceeded_limit() is None
    assert len(counted) == 3, "120 MiB could be, but are not"
    (tmp_path / "ours").write_bytes(b"x" * (101 * MIB))
    disk["f_bfree"] = 700
    assert watched.exceeded_limit() == "0.0976562 GiB of files"


ORDER = ("f_frsize", "f_blocks", "f_bfree", "f_bfree", "f_files", "f_ffree")


def test_the_number_of_files_is_limited_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 100)
    watched = DiskUsage(tmp_path, 1 << 40)
    for number in range(101):
        (tmp_path / str(number)).touch()
    assert watched.exceeded_limit() == "100 files"


OURS_ON_PATH = {
    "PYTHONPATH": f"{Path(files.__file__).parents[2]}:{Path(psutil.__file__).parents[1]}",
    "PATH": os.environ["PATH"],
}


def test_files_in_a_locked_folder_are_estimated_from_the_space_that_the_disk_has_lost(
    ordinary: Boxed,
) -> None:
    """The `du` of an ordinary user cannot read folders that the user's program has locked.

    Other tests change the usage of the same disk: hence a limit that they do not reach within
    milliseconds, and up to 20 files, for growth may be hidden by space that others free.
    """
    script = (
        "import os; from pathlib import Path; from agents.sandbox.files import DiskUsage\n"
        "def write(name):\n"
        "    with open(name, 'wb') as file: os.posix_fallocate(file.fileno(), 0, 100 << 20)\n"
        "os.mkdir('locked'); write('locked/big'); os.chmod('locked', 0)\n"
        "watched = DiskUsage(Path('.'), 80 << 20); print(watched.exceeded_limit())\n"
        "for number in range(20):\n"
        "    write(f'more {number}'); exceeded = watched.exceeded_limit()\n"
        "    if exceeded: break\n"
        "print(exceeded)"
    )
    ran = subprocess.run(
        ["/usr/bin/python3", "-c", script],
        cwd=ordinary.workspace,
        env=OURS_ON_PATH,
        capture_output=True,
        text=True,
        user=ordinary.uid,
        check=False,
    )
    assert ran.stdout.split("\n")[:2] == ["None", "0.078125 GiB of files"], ran.stderr
    remove_workspace(ordinary.workspace / "locked")


HOLD = """
import ctypes, os, sys, time
for number in range(3):
    fd = os.open(f"f{number}", os.O_RDWR | os.O_CREAT)
    os.write(fd, os.urandom(20 << 20)); os.dup(fd); os.unlink(f"f{number}")
if sys.argv[1:]: ctypes.CDLL(None).prctl(4, 0)
print("held", flush=True)
time.sleep(600)
"""
"""With an argument, the process hides its open files (PR_SET_DUMPABLE)."""
MEASURE = """
import sys; from pathlib import Path
from agents.sandbox.files import LimitedQuantity, program_usage
counted = (program_usage(Path(sys.argv[1]), int(sys.argv[2]), each) for each in LimitedQuantity)
print(*counted)
"""


def usage_of(boxed: Boxed, *arguments: str) -> list[str]:
    """Return the bytes and number of files counted while three deleted files are open."""
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with boxed.start(boxed.command("python3", "-c", HOLD, *arguments), **quiet) as started:
        try:
            assert started.stdout
            assert started.stdout.readline() == "held\n"
            return run_outside(boxed, MEASURE, boxed.workspace, started.pid).split()
        finally:
            started.kill()


def run_outside(boxed: Boxed, script: str, *arguments: object) -> str:
    """Run our own code outside the sandbox as the sandbox's user; return its output."""
    ran = subprocess.run(
        ["/usr/bin/python3", "-c", script, *map(str, arguments)],
        env=OURS_ON_PATH,
        capture_output=True,
        text=True,
        user=boxed.uid,
        group=boxed.uid,
        check=False,
    )
    assert not ran.stderr
    return ran.stdout


def test_deleted_files_that_are_still_open_count(boxed: Boxed) -> None:
    held_bytes, number = map(int, usage_of(boxed))
    assert 60 * MIB <= held_bytes < 61 * MIB, "once, however often a file is open"
    assert number == 3 + 1, "plus the folder"


def test_the_usage_of_a_process_that_hides_its_open_files_is_unknown(ordinary: Boxed) -> None:
    """All space that the file system has lost then counts as its own. Root can see it anyway."""
    assert usage_of(ordinary, "hide") == ["None", "None"]


def test_a_du_without_long_options_is_sufficient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The `du` of busybox cannot count files, so that their number is then not limited."""
    real = shutil.which("du")
    small = tmp_path / "bin" / "du"
    small.parent.mkdir()
    refuse = "for each; do case $each in --?*) exit 1;; esac; done"
    small.write_text(f'#!/bin/sh\n{refuse}; exec {real} "$@"\n')
    small.chmod(0o755)
    monkeypatch.setenv("PATH", f"{small.parent}:{os.environ['PATH']}")
    files._counts_files.cache_clear()
    try:
        assert folder_usage(small.parent, LimitedQuantity.NUMBER) == 0
        (tmp_path / "held").write_bytes(b"x" * MIB)
        assert MIB <= (folder_usage(tmp_path, LimitedQuantity.BYTES) or 0) < 2 * MIB
    finally:
        files._counts_files.cache_clear()


REMOVE = """
import sys; from pathlib import Path; from agents.workspace import remove_workspace
remove_workspace(Path(sys.argv[1]))
"""


def test_deep_and_locked_folders_are_removed(boxed: Boxed) -> None:
    """`shutil.rmtree` needs a recursive call and an open file for each level."""
    boxed.sh("mkdir locked && touch locked/file && chmod 0 locked")
    dig = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    assert boxed.run("python3", "-c", dig).returncode == 0
    try:
        for name in ("d", "locked"):
            subprocess.run(
                ["/usr/bin/python3", "-c", REMOVE, boxed.workspace / name],
                env={
                    "PYTHONPATH": str(Path(files.__file__).parents[1]),
                    "PATH": os.environ["PATH"],
                },
                user=boxed.uid,
                check=True,
            )
        assert list(boxed.workspace.iterdir()) == []
    finally:
        subprocess.run(["rm", "-rf", boxed.workspace / "d"], check=False)


@needs_bubblewrap
def test_links_and_pipes_in_place_of_logs_and_results_are_not_followed(
    warm: Warm, tmp_path: Path, url: str
) -> None:
    """Links could copy files of the host into the records, and reading a pipe would block."""
    secret = tmp_path / "secret"
    secret.write_text("hush")
    to = f"ln -sf {secret} $HOME/"
    plans = {
        "link": [f"{to}log; {to}result.json; kill -9 $PPID"],
        "pipe": ["rm $HOME/log; mkfifo $HOME/log; kill -9 $PPID"],
        "escape": [r"printf '\033]0;owned\007\033[2Jred' >> /proc/$PPID/fd/2; kill -9 $PPID"],
        "harmless": ["echo one"],
    }
    begin(warm, tmp_path, url, plans)
    assert warm.end() == 1
    err = output_of(tmp_path)
    errors = ends(tmp_path)
    assert errors["harmless"] is None
    assert {errors[name].partition(" 137")[0] for name in ("link", "pipe")} == {
        "the agent's process exited with code"
    }
    assert errors["escape"].endswith(": ]0;owned[2Jred")
    assert "\x1b" not in err
    assert secret.read_text() == "hush"
    records = (tmp_path / "o" / CELL).glob("*.jsonl")
    assert not [path for path in records if "hush" in path.read_text()]


@needs_bubblewrap
def test_files_of_agents_are_readable_only_by_their_user(
    warm: Warm, tmp_path: Path, url: str
) -> None:
    """That includes conversations, patches and, during the run, sockets."""
    seen = "stat -c %a /run/gateway"
    begin(warm, tmp_path, url, {"a": [seen]})
    check_end(warm, tmp_path)
    assert lines(tmp_path, "predictions.jsonl")[0]["model_patch"] == "600\n"
    mode = (tmp_path / "o" / CELL / "agents").stat().st_mode
    assert stat.S_IMODE(mode) == 0o700


def test_without_a_sandbox_agents_do_not_get_variables_with_keys(
    warm: Warm, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "TURNSTILE_API_KEY"):
        monkeypatch.setenv(name, "planted-secret")
    monkeypatch.setenv("EDITOR", "planted-editor")
    begin(warm, tmp_path, url, {"a": ["env | grep planted"]}, *WITHOUT_SANDBOX)
    check_end(warm, tmp_path)
    patch = lines(tmp_path, "predictions.jsonl")[0]["model_patch"]
    assert patch == "EDITOR=planted-editor\n"


@needs_bubblewrap
def test_the_key_of_a_program_is_in_no_command_line(warm: Warm, tmp_path: Path, url: str) -> None:
    """Every user of the machine can read command lines."""
    until_seen = "for i in $(seq 600); do [ -e seen ] && break; sleep 0.1; done"
    plan = [f"echo $OPENAI_API_KEY > key; {until_seen}; cat key"]
    begin(warm, tmp_path, url, {"a": plan}, "--agent-network")
    pattern = f"o/{CELL}/agents/*/workspace/key"
    wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob(pattern)))
    (path,) = tmp_path.glob(pattern)
    key = path.read_text().strip()
    command_lines = b" ".join(contents(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
    path.with_name("seen").touch()
    check_end(warm, tmp_path)
    assert len(key) == 43
    assert str(tmp_path).encode() in command_lines
    assert key.encode() not in command_lines


def contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
