"""What commands of a model try on the harness that runs them, and on those beside them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agents.sandbox import files
from agents.sandbox.files import DiskUsage, Kind, folder_usage
from agents.workspace import remove_workspace
from tests.agents.bubblewrap import needs_bubblewrap
from tests.agents.planner import planner
from tests.agents.sandbox.conftest import Boxed
from tests.agents.test_runs import CELL, UNCONFINED, begin, fine, lines

MIB = 1 << 20


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with planner() as url:
        yield url


def ends(folder: Path) -> dict[str, str]:
    return {end["program_id"]: end["error"] for end in lines(folder, "programs.jsonl")}


@needs_bubblewrap
def test_a_program_that_fills_the_disk_is_ended_and_the_others_go_on(
    bench: str, tmp_path: Path, url: str
) -> None:
    """Many files, each below what one may have."""
    fill = (
        "for i in $(seq 1000); do head -c 4M /dev/zero > f$i || break; sleep 0.02; done; sleep 60"
    )
    run = begin(bench, tmp_path, url, {"a": [fill], "b": ["echo one"]}, "--agent-disk-gb", "0.1")
    run.communicate(timeout=120)
    assert run.returncode == 1
    assert ends(tmp_path) == {
        "a": "the program exceeded its limit of 0.1 GiB of files",
        "b": None,
    }
    assert not list((tmp_path / "o" / CELL / "agents").glob("*/workspace"))


def test_files_are_counted_where_the_disk_has_lost_so_much_and_else_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Kind] = []

    def count(kind: Kind) -> int | None:
        counted.append(kind)
        return folder_usage(tmp_path, kind)

    disk = {"f_blocks": 1000, "f_bfree": 1000, "f_frsize": MIB, "f_files": 10**6, "f_ffree": 10**6}
    monkeypatch.setattr(
        os, "statvfs", lambda _: os.statvfs_result((0, *map(disk.get, ORDER), 0, 0, 0, 0))
    )
    watched = DiskUsage(tmp_path, 100 * MIB, count)
    assert watched.exceeded_limit() is None
    assert counted == [Kind.BYTES, Kind.NUMBER], "at the beginning"
    disk["f_bfree"] = 910
    assert watched.exceeded_limit() is None
    assert len(counted) == 2, "at the most 90 MiB of them are ours"
    disk["f_bfree"] = 880
    assert watched.exceeded_limit() is None
    assert len(counted) == 3, "120 MiB could be, but are not"
    (tmp_path / "ours").write_bytes(b"x" * (101 * MIB))
    disk["f_bfree"] = 700
    assert watched.exceeded_limit() == "0.0976562 GiB of files"


ORDER = ("f_frsize", "f_blocks", "f_bfree", "f_bfree", "f_files", "f_ffree")


def test_so_many_files_are_too_much_as_well(
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


def test_what_a_locked_folder_holds_is_taken_from_what_the_disk_has_lost(ordinary: Boxed) -> None:
    """An ordinary user's `du` cannot look into what that user's program has locked."""
    script = (
        "import os, sys; from pathlib import Path; from agents.sandbox.files import DiskUsage\n"
        "Path('locked').mkdir(); Path('locked/big').write_bytes(os.urandom(40 << 20))\n"
        "os.chmod('locked', 0); watched = DiskUsage(Path('.'), 20 << 20)\n"
        "print(watched.exceeded_limit())\n"
        "Path('more').write_bytes(os.urandom(30 << 20)); os.sync(); print(watched.exceeded_limit())"
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
    assert ran.stdout.split("\n")[:2] == ["None", "0.0195312 GiB of files"], ran.stderr
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
"""With a word, it is no longer to be looked into (PR_SET_DUMPABLE)."""
TAKEN = """
import sys; from pathlib import Path; from agents.sandbox.files import Kind, program_usage
print(*(program_usage(Path(sys.argv[1]), int(sys.argv[2]), kind) for kind in Kind))
"""


def taken_by(boxed: Boxed, *words: str) -> list[str]:
    """Bytes and number, as they are counted while it holds three deleted files open."""
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with boxed.start(boxed.command("python3", "-c", HOLD, *words), **quiet) as started:
        try:
            assert started.stdout
            assert started.stdout.readline() == "held\n"
            return ours(boxed, TAKEN, boxed.workspace, started.pid).split()
        finally:
            started.kill()


def ours(boxed: Boxed, script: str, *words: object) -> str:
    """What our own code says, run outside by the sandbox's user."""
    ran = subprocess.run(
        ["/usr/bin/python3", "-c", script, *map(str, words)],
        env=OURS_ON_PATH,
        capture_output=True,
        text=True,
        user=boxed.uid,
        group=boxed.uid,
        check=False,
    )
    assert not ran.stderr
    return ran.stdout


def test_what_is_deleted_and_still_open_counts(boxed: Boxed) -> None:
    held_bytes, number = map(int, taken_by(boxed))
    assert 60 * MIB <= held_bytes < 61 * MIB, "once, whatever number of times it is open"
    assert number == 3 + 1, "and the folder"


def test_who_hides_what_it_has_open_is_not_believed(ordinary: Boxed) -> None:
    """Instead all that the file system has lost is taken for its own. Root sees it anyway."""
    assert taken_by(ordinary, "hide") == ["None", "None"]


def test_a_du_without_long_options_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """busybox': it counts no files in number, and these are then not limited."""
    real = shutil.which("du")
    small = tmp_path / "bin" / "du"
    small.parent.mkdir()
    refuse = "for each; do case $each in --?*) exit 1;; esac; done"
    small.write_text(f'#!/bin/sh\n{refuse}; exec {real} "$@"\n')
    small.chmod(0o755)
    monkeypatch.setenv("PATH", f"{small.parent}:{os.environ['PATH']}")
    files._counts_files.cache_clear()
    try:
        assert folder_usage(small.parent, Kind.NUMBER) == 0
        (tmp_path / "held").write_bytes(b"x" * MIB)
        assert MIB <= (folder_usage(tmp_path, Kind.BYTES) or 0) < 2 * MIB
    finally:
        files._counts_files.cache_clear()


REMOVE = """
import sys; from pathlib import Path; from agents.workspace import remove_workspace
remove_workspace(Path(sys.argv[1]))
"""


def test_deep_and_locked_folders_are_removed(boxed: Boxed) -> None:
    """`shutil.rmtree` needs a call, and an open file, for each on the way down."""
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
def test_a_link_or_a_pipe_in_the_place_of_a_log_or_a_result_is_not_followed(
    bench: str, tmp_path: Path, url: str
) -> None:
    """What they show of the host would stand in the records; a pipe would be waited for."""
    secret = tmp_path / "secret"
    secret.write_text("hush")
    to = f"ln -sf {secret} $HOME/"
    plans = {
        "link": [f"{to}log; {to}result.json; kill -9 $PPID"],
        "pipe": ["rm $HOME/log; mkfifo $HOME/log; kill -9 $PPID"],
        "escape": [r"printf '\033]0;owned\007\033[2Jred' >> /proc/$PPID/fd/2; kill -9 $PPID"],
        "fine": ["echo one"],
    }
    run = begin(bench, tmp_path, url, plans)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1
    told = ends(tmp_path)
    assert told["fine"] is None
    assert {told[name].partition(" 137")[0] for name in ("link", "pipe")} == {
        "the agent's process exited with code"
    }
    assert told["escape"].endswith(": ]0;owned[2Jred")
    assert "\x1b" not in err
    assert secret.read_text() == "hush"
    records = (tmp_path / "o" / CELL).glob("*.jsonl")
    assert not [path for path in records if "hush" in path.read_text()]


@needs_bubblewrap
def test_what_agents_leave_is_for_their_user_alone(bench: str, tmp_path: Path, url: str) -> None:
    """Conversations and patches; and the sockets, while it runs."""
    seen = "stat -c %a /run/gateway"
    run = begin(bench, tmp_path, url, {"a": [seen]})
    assert fine(run), run.returncode
    assert lines(tmp_path, "predictions.jsonl")[0]["model_patch"] == "600\n"
    mode = (tmp_path / "o" / CELL / "agents").stat().st_mode
    assert stat.S_IMODE(mode) == 0o700


def test_without_a_sandbox_variables_that_hold_keys_stay_outside(
    bench: str, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "TURNSTILE_API_KEY"):
        monkeypatch.setenv(name, "planted-secret")
    monkeypatch.setenv("EDITOR", "planted-editor")
    run = begin(bench, tmp_path, url, {"a": ["env | grep planted"]}, *UNCONFINED)
    assert fine(run), run.returncode
    said = lines(tmp_path, "predictions.jsonl")[0]["model_patch"]
    assert said == "EDITOR=planted-editor\n"


@needs_bubblewrap
def test_the_key_of_a_program_is_in_no_command_line(bench: str, tmp_path: Path, url: str) -> None:
    """Which everybody on the machine can read."""
    plan = ["echo $OPENAI_API_KEY > key; sleep 3; cat key"]
    run = begin(bench, tmp_path, url, {"a": plan}, "--agent-network")
    found: list[Path] = []
    while not (found := list(tmp_path.glob(f"o/{CELL}/agents/*/workspace/key"))):
        assert run.poll() is None
        time.sleep(0.05)
    time.sleep(0.2)
    key = found[0].read_text().strip()
    words = b" ".join(contents(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
    assert fine(run), run.returncode
    assert len(key) == 43
    assert str(tmp_path).encode() in words
    assert key.encode() not in words


def contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
