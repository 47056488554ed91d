"""`bench sweep --engine dynamo-mocker`: cells that fail, and a `bench` that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.processes.supervisor import descendants
from tests.foreign_routers.dynamo_replaying import installation
from tests.foreign_routers.test_dynamo import growing
from tests.lines import read_lines
from tests.processes import wait_until, wait_until_gone, wait_until_none
from tests.sentences import mentions
from traces.formats.native import write_programs

CELL = "o/fcfs-dynamo-round-robin_closed-2_seed1"


@pytest.fixture
def own() -> Iterator[str]:
    """A short folder for temporary files: tests that run beside these have some in /tmp."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def test_a_cell_whose_frontend_or_bench_is_killed_runs_again(
    bench: str, tmp_path: Path, own: str
) -> None:
    write_programs(tmp_path / "t.jsonl", [growing("a", 6, 0.1), growing("b", 6, 0.1)])
    arguments = ["--engine", "dynamo-mocker", "--replicas", "2", "--router", "dynamo:round-robin"]
    arguments += ["--traces", "t.jsonl", "--arrivals", "closed:2", "--kv-blocks", "400"]
    arguments += ["--out", "o", "--", "--speedup-ratio", "10"]
    turns = tmp_path / CELL / "turns.jsonl"

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [bench, "sweep", *arguments],
            cwd=tmp_path,
            env={**os.environ, "TURNSTILE_DYNAMO_PYTHON": installation().python, "TMPDIR": own},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    def wait_for_turns(sweep: subprocess.Popen[str]) -> list[int]:
        wait_until(lambda: turns.exists() and turns.stat().st_size, process=sweep)
        return descendants(sweep.pid)

    def shared() -> list[Path]:
        return list(Path(own).glob("turnstile-*"))

    with started() as sweep:
        pids = wait_for_turns(sweep)
        (frontend,) = [pid for pid in pids if runs(pid, b"dynamo.frontend", b"-m")]
        os.kill(frontend, signal.SIGKILL)
        assert sweep.wait(300) == 1
    failed = json.loads((tmp_path / CELL / "failed.json").read_text())
    assert mentions(failed["error"], "Dynamo's frontend", "signal 9")
    assert failed["traceback"] is None
    wait_until_gone(pids)
    assert shared() == []

    with started() as sweep:
        pids = wait_for_turns(sweep)
        sweep.kill()
    wait_until_gone(pids)
    wait_until_none(shared)

    with started() as sweep:
        assert sweep.wait(300) in (0, 1)  # 1: the client was late, on a busy machine
    lines = read_lines(turns)
    assert [line["error"] for line in lines] == [None] * 12
    config = json.loads((tmp_path / CELL / "cell.json").read_text())
    version = installation().version
    assert config["router"] == {
        "name": "dynamo:round-robin", "version": version, "source": "ai-dynamo on PyPI",
    }  # fmt: skip
    assert config["server"]["dynamo"] == version
    assert config["server"]["flags"] == ["--speedup-ratio", "10"]
    done = json.loads((tmp_path / CELL / "done.json").read_text())
    assert done["turns_per_replica"] == [6, 6]
    assert (done["kv_blocks"], done["failed_turns"]) == (400, 0)


def runs(pid: int, module: bytes, flag: bytes) -> bool:
    """Return whether the process itself, not its supervisor, runs `python -m module`."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[1:3] == [flag, module]
