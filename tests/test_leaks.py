"""The fixture that looks for what a test left behind: `tests.leaks`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.leaks import read

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

CONFTEST = """
import tests.leaks
from tests.leaks import nothing_left, nothing_left_by_the_session, watch
tests.leaks.GRACE_S = tests.leaks.SHARED_MEMORY_GRACE_S = 0.3
"""
DURATION_S = f"61.{os.getpid()}"
"""Seconds of a sleep, unique to this session, since several may run at once."""
LEAKS = {
    "process": f'subprocess.Popen(["sleep", "{DURATION_S}"])',
    "orphan": "subprocess.run(['sh', '-c', 'setsid sleep 62 >/dev/null &'], check=True)",
    "thread": "threading.Thread(target=time.sleep, args=(2,), name='forgotten').start()",
    "port": 'kept.append(socket.create_server(("127.0.0.1", 0)))',
    "file": "kept.append(open(os.devnull))",
    "loop": "kept.append(asyncio.new_event_loop())",
    "temporary": 'tempfile.mkdtemp(prefix="turnstile-")',
    "segment": "open(f'/dev/shm/forgotten-by-a-test-{os.getpid()}', 'w').close()",
}
REPORTED = {
    "process": f"process: [0-9]+ sleep {DURATION_S}",
    "orphan": "process: [0-9]+ sleep 62",
    "thread": "thread: forgotten",
    "port": r"open file: [0-9]+ socket:\[[0-9]+\] \(port [0-9]+\)",
    "file": "open file: [0-9]+ /dev/null",
    "loop": r"open file: [0-9]+ anon_inode:\[eventpoll\]",
    "temporary": "temporary file: turnstile-",
    "segment": "shared memory: forgotten-by-a-test-",
}
if os.getuid() == 0:
    LEAKS["mount"] = 'subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)'
    REPORTED["mount"] = "mount: .*/test_mount0"
HEAD = """
import asyncio, multiprocessing.resource_tracker, os, pytest
import socket, subprocess, tempfile, threading, time
kept = []
"""


def run_pytest(folder: Path, tests: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_inner.py").write_text(HEAD + textwrap.dedent(tests))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-W", "ignore", "--rootdir", str(folder), "--basetemp", str(folder / "base")]
    ran = subprocess.run(
        [*command, str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT)},
    )
    return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    tests = "".join(f"def test_{name}(tmp_path):\n    {leak}\n" for name, leak in LEAKS.items())
    return run_pytest(tmp_path_factory.mktemp("leaky"), tests)


@pytest.mark.parametrize("kind", LEAKS)
def test_a_test_that_leaves_something_behind_fails_with_its_name(kind: str, output: str) -> None:
    errors = output.split("ERROR at teardown of ")
    (own,) = [error for error in errors if error.startswith(f"test_{kind} ")]
    assert re.search(REPORTED[kind], own)


def test_leaks_are_removed_so_that_the_next_test_is_clean(output: str) -> None:
    assert f"{len(LEAKS)} passed, {len(LEAKS)} errors" in output
    assert not [
        p
        for p in Path("/proc").glob("[0-9]*/cmdline")
        if f"sleep\0{DURATION_S}".encode() in read(str(p))
    ]
    assert not list(Path("/dev/shm").glob("forgotten-by-a-test-*"))  # noqa: S108


def test_resources_of_a_fixture_with_wider_scope_may_stay_until_it_ends(tmp_path: Path) -> None:
    output = run_pytest(
        tmp_path,
        """
        @pytest.fixture(scope="module")
        def server():
            process = subprocess.Popen(["sleep", "63"])
            multiprocessing.resource_tracker.ensure_running()
            yield
            process.kill()
            process.wait()

        def test_first(server): ...
        def test_second(server): ...
        """,
    )
    assert "2 passed" in output


def test_a_process_of_a_fixture_with_wider_scope_may_start_others_in_a_test(tmp_path: Path) -> None:
    output = run_pytest(
        tmp_path,
        """
        @pytest.fixture(scope="module")
        def server():
            late = "read line; sleep 65 & echo started; wait"
            process = subprocess.Popen(
                ["sh", "-c", late], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                start_new_session=True,
            )
            yield process
            os.killpg(process.pid, 9)
            process.communicate()

        def test_first(server):
            server.stdin.write(b"go\\n")
            server.stdin.flush()
            assert server.stdout.readline() == b"started\\n"
        """,
    )
    assert "1 passed" in output
    assert "error" not in output


def test_leaks_of_a_fixture_with_wider_scope_fail_the_session(tmp_path: Path) -> None:
    output = run_pytest(
        tmp_path,
        """
        @pytest.fixture(scope="module")
        def server():
            subprocess.Popen(["sleep", "64"])

        def test_first(server): ...
        """,
    )
    assert re.search("process: [0-9]+ sleep 64", output)
    assert "1 passed, 1 error" in output
