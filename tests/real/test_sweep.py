"""`bench sweep --engine vllm`: folder and report as in virtual time, and no process left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from servers.processes.supervisor import descendants
from servers.variants import variants
from traces import Program, Turn
from traces.formats.native import write_programs

BENCH = str(Path(sys.executable).parent / "bench")
POLICIES = [v.name for v in variants("all") if not v.bound and not v.offload]
PROGRAMS = [
    Program(
        f"job-{k}",
        (
            Turn(320, 100, 0, ("ls",), None, 0.5),
            Turn(640, 100, 420, ("pytest",), None, 0.5),
            Turn(900, 80, 740),
        ),
    )
    for k in range(6)
]
"""Contexts of up to 980 tokens, 31 blocks of 32."""
POOL_BLOCKS = 50
"""Not for two of them at their end. Four first prompts of 10 blocks fit; the answers, which make
14 of each, do not: vLLM has to preempt."""
AT_ONCE = "50"
"""Jobs a second: all six within a tenth of a second, so that no machine is too fast to contend."""


def begin(folder: Path, *options: str) -> subprocess.Popen[str]:
    write_programs(folder / "t.jsonl", PROGRAMS)
    fixed = ("sweep", "--engine", "vllm", "--model", "tiny", "--traces", "t.jsonl", "--out", "o")
    return subprocess.Popen(
        [BENCH, *fixed, "--kv-blocks", str(POOL_BLOCKS), *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(sweep: subprocess.Popen[str], happened: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 300
    while not happened():
        assert sweep.poll() is None, sweep.stderr and sweep.stderr.read()
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def until_gone(processes: list[int]) -> None:
    deadline_s = time.monotonic() + 30
    while left := [pid for pid in processes if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.1)


def test_every_policy_completes_a_contended_workload_also_after_kill_9(tmp_path: Path) -> None:
    options = ("--jps", AT_ONCE, "--policies", ",".join(POLICIES))
    first = begin(tmp_path, *options)
    second_cell = tmp_path / f"o/{POLICIES[1]}_jps{AT_ONCE}_seed1"
    until(first, second_cell.exists)
    processes = descendants(first.pid)
    first.kill()
    first.communicate()
    until_gone(processes)

    second = begin(tmp_path, *options)
    told, complaints = second.communicate(timeout=900)
    assert second.returncode in (0, 1), complaints
    assert f"1 of {len(POLICIES)} cells were finished already" in complaints
    assert told.startswith("engine vllm: vLLM 0.")
    rows = {row["variant"]: row for row in json.loads((tmp_path / "o/cells.json").read_text())}
    assert rows.keys() == set(POLICIES)
    for row in rows.values():
        assert (row["jobs"], row["failed_turns"]) == (6, 0)
        # The one gate that a machine with other work to do may fail:
        assert not row["failed_gates"] or row["failed_gates"].startswith("client lateness")
        assert row["residual"] < 1e-6
    assert rows["fcfs"]["preemptions"] > 0
    for name in POLICIES:
        log = tmp_path / f"o/{name}_jps{AT_ONCE}_seed1/engine.jsonl"
        events = [json.loads(line) for line in log.read_text().splitlines()]
        pins = [event["event"] for event in events if event["event"] in ("pinned", "unpinned")]
        assert pins.count("pinned") == pins.count("unpinned"), name
        if name == "continuum-preview":
            assert pins
        assert sum(event["event"] == "finished" for event in events) == 18


def test_ctrl_c_during_a_start_leaves_no_process_and_prints_how_to_resume(tmp_path: Path) -> None:
    sweep = begin(tmp_path, "--jps", "4", "--policies", "fcfs")
    until(sweep, (tmp_path / "o/fcfs_jps4_seed1/server/server.log").exists)
    time.sleep(3)
    processes = descendants(sweep.pid)
    sweep.send_signal(signal.SIGINT)
    _, complaints = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert "bench: stopped; finished cells are kept, resume with: bench sweep" in complaints
    until_gone(processes)
