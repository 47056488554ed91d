"""`bench sweep --engine vllm`: folder and report as in virtual time, and no process left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from traces import Program, Turn
from traces.native import write_programs

BENCH = str(Path(sys.executable).parent / "bench")
PROGRAMS = [
    Program(
        f"job-{k}",
        (
            Turn(320, 20, 0, ("ls",), None, 0.5),
            Turn(640, 20, 340, ("pytest",), None, 0.5),
            Turn(960, 20, 660),
        ),
    )
    for k in range(6)
]
"""3 turns, contexts of up to 980 tokens: 31 blocks of 32."""


def command(folder: Path, *options: str) -> list[str]:
    write_programs(folder / "t.jsonl", PROGRAMS)
    return [
        *(BENCH, "sweep", "--engine", "vllm", "--model", "tiny", "--traces", "t.jsonl"),
        *("--jps", "2", "--kv-blocks", "70", "--out", "o", *options),
    ]


def processes_of(folder: Path) -> list[str]:
    """Command lines and environments hold the folder's name, or the process is none of ours."""
    found = subprocess.run(
        ["pgrep", "-af", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.splitlines()


def test_policies_side_by_side_on_real_vllm(tmp_path: Path) -> None:
    result = subprocess.run(
        command(tmp_path, "--policies", "fcfs,static-ttl", "--costs", "costs.json"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2  # the file is missing
    (tmp_path / "costs.json").write_text(
        json.dumps({"base_s": 5.0, "linear_s": 0.001, "quadratic_s": 0, "step_tokens": 2048})
    )
    result = subprocess.run(
        command(tmp_path, "--policies", "fcfs,static-ttl", "--costs", "costs.json"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert re.match(r"engine vllm: vLLM 0\.\d+\.\d+\S* on cpu, \d+ cores, tiny", result.stdout)
    rows = {row["variant"]: row for row in json.loads((tmp_path / "o/cells.json").read_text())}
    assert [rows[v]["jobs"] for v in ("fcfs", "static-ttl")] == [6, 6]
    assert max(row["residual"] for row in rows.values()) < 1e-6
    # Pins of ln(5 s) = 1.6 s hold through gaps of 0.5 s.
    lines = (tmp_path / "o/static-ttl_jps2_seed1/turns.jsonl").read_text().splitlines()
    turns = [json.loads(line) for line in lines]
    assert any(turn["pinned_hit"] for turn in turns)
    assert rows["static-ttl"]["device_hit_ratio"] >= rows["fcfs"]["device_hit_ratio"]
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_is_ended_leaves_no_server_and_goes_on(
    how: signal.Signals, tmp_path: Path
) -> None:
    begun = command(tmp_path, "--policies", "fcfs,program-fcfs")
    first = subprocess.Popen(begun, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    second_cell = tmp_path / "o/program-fcfs_jps2_seed1/turns.jsonl"
    deadline_s = time.monotonic() + 300
    while not second_cell.exists() or not list(second_cell.parent.glob("server/server.json")):
        assert first.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    first.send_signal(how)
    _, said = first.communicate(timeout=60)
    deadline_s = time.monotonic() + 30
    while processes_of(tmp_path):
        assert time.monotonic() < deadline_s, processes_of(tmp_path)
        time.sleep(0.2)
    if how is signal.SIGINT:
        assert first.returncode == 130
        assert "finished cells are kept, go on with: bench sweep" in said
        return
    again = subprocess.run(begun, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "1 of 2 cells were finished already" in again.stderr


def test_an_engine_killed_in_mid_run_becomes_records_and_a_failed_cell(tmp_path: Path) -> None:
    begun = command(tmp_path, "--policies", "fcfs", "--jps", "0.2")
    sweep = subprocess.Popen(begun, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    turns = tmp_path / "o/fcfs_jps0.2_seed1/turns.jsonl"
    deadline_s = time.monotonic() + 300
    while not turns.exists() or not turns.read_bytes():
        assert sweep.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    engines = [line for line in _children(sweep.pid) if b"EngineCore" in line[1]]
    os.kill(engines[0][0], signal.SIGKILL)
    _, said = sweep.communicate(timeout=60)
    assert sweep.returncode == 1
    assert "1 of 1 cells failed" in said
    failed = json.loads((turns.parent / "failed.json").read_text())
    assert failed["error"].startswith("vLLM exited with code")
    assert failed["traceback"] is None
    assert processes_of(tmp_path) == []


def _children(root: int) -> list[tuple[int, bytes]]:
    from servers.vllm.keeper import descendants

    return [
        (pid, Path(f"/proc/{pid}/comm").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes())
        for pid in descendants(root)
    ]
