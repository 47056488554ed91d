"""The process of one program is booted early, started later, and ended with all its descendants."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from agents import processes
from agents.processes import Process
from servers.basics.errors import AgentStartError
from tests.leaks import has_ended
from tests.processes import wait_until

PYTHON = sys.executable


def process(tmp_path: Path, code: str) -> Process:
    return Process([PYTHON, "-c", code], {"PATH": os.environ["PATH"]}, tmp_path, tmp_path / "log")


def test_a_process_begins_its_task_only_when_it_is_started(tmp_path: Path) -> None:
    code = (
        "import sys; print('ready', flush=True); sys.stdin.readline(); "
        "open('task_started', 'w').close(); print('output'); sys.exit(3)"
    )

    async def run() -> int:
        async with process(tmp_path, code) as started:
            await started.ready()
            assert not (tmp_path / "task_started").exists()
            started.start_task()
            return await started.wait()

    assert asyncio.run(run()) == 3
    assert (tmp_path / "task_started").exists()
    assert (tmp_path / "log").read_text() == "output\n"


def test_an_agent_that_exits_before_it_is_ready_is_an_error_with_the_reason(tmp_path: Path) -> None:
    async def run() -> None:
        async with process(tmp_path, "raise SystemExit('no such module: x')") as started:
            await started.ready()

    with pytest.raises(AgentStartError, match=r"before it was ready: .* module: x"):
        asyncio.run(run())


def test_a_process_that_ignores_sigterm_is_killed_with_its_daemons(tmp_path: Path) -> None:
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True)\n"
        "open('pids', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)"
    )

    async def run() -> list[int]:
        async with process(tmp_path, code) as started:
            await started.ready()
            return [int(pid) for pid in (tmp_path / "pids").read_text().split()]

    for pid in asyncio.run(run()):
        wait_until(partial(has_ended, pid))


def test_the_exit_code_after_a_signal_is_128_plus_its_number(tmp_path: Path) -> None:
    async def run() -> int:
        async with process(tmp_path, "import os; os.kill(os.getpid(), 9)") as started:
            started.start_task()
            return await started.wait()

    assert asyncio.run(run()) == 137


def test_a_failed_start_leaves_no_file_open(tmp_path: Path) -> None:
    async def start() -> None:
        async with Process([PYTHON], {}, tmp_path / "nowhere", tmp_path / "log"):
            raise AssertionError("it started")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        asyncio.run(start())
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("output", [1, 2])
def test_the_log_of_a_process_is_limited_in_size(
    output: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MAX_LOG_BYTES", 300_000)
    code = f"import os\nfor _ in range(100): os.write({output}, b'x' * 9999 + b'.')"

    async def run() -> int:
        async with process(tmp_path, code) as started:
            started.start_task()
            return await started.wait()

    assert asyncio.run(run()) == 0
    assert (tmp_path / "log").stat().st_size == 300_000


def test_everything_printed_before_the_end_is_in_the_log(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('x' * 1_000_000 + '\\nlast'); sys.exit(1)"

    async def run() -> str:
        async with process(tmp_path, code) as started:
            started.start_task()
            await started.wait()
            return started.last_log_line()

    assert asyncio.run(run()) == ": last"
    assert (tmp_path / "log").stat().st_size == 1_000_005


HARNESS = """
import asyncio, os, sys; from pathlib import Path; from agents import processes
async def run():
    here = Path.cwd()
    command = [sys.executable, "-c", sys.argv[1]]
    async with processes.Process(command, os.environ, here, here / "log"):
        await asyncio.sleep(600)
asyncio.run(run())
"""
IGNORES_SIGTERM = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if child := os.fork(): open("new", "w").write(f"{os.getpid()} {child}"); os.rename("new", "pids")
else: os.setsid()
time.sleep(600)
"""


def test_a_process_that_ignores_sigterm_is_killed_after_the_harness_is_killed(
    tmp_path: Path,
) -> None:
    root = Path(processes.__file__).parents[1]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root)}
    with subprocess.Popen(
        [PYTHON, "-c", HARNESS, IGNORES_SIGTERM], cwd=tmp_path, env=env
    ) as harness:
        wait_until((tmp_path / "pids").exists, process=harness)
        harness.kill()
    for pid in (tmp_path / "pids").read_text().split():
        wait_until(partial(has_ended, int(pid)))
