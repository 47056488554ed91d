"""`bench sweep --engine vllm --router vllm-router:…`, with a substitute for vLLM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from servers.processes.supervisor import descendants
from tests.faults.engine import engine
from tests.faults.sweeping import Cell
from tests.faults.table import ROUTER_KILLED, matches
from tests.foreign_routers.replaying import installation
from tests.leaks import read
from tests.lines import read_lines
from tests.live.replaying import program
from tests.processes import wait_until, wait_until_gone
from traces.formats.native import write_programs

CELLS = {
    "fcfs@vllm-router:round_robin": "fcfs-vllm-router-round-robin_closed-2_seed1",
    "fcfs@vllm-router:consistent_hash": "fcfs-vllm-router-consistent-hash_closed-2_seed1",
}
KILLED = "fcfs@vllm-router:consistent_hash"
MAX_NOTICED_S = 60.0
"""Far below all time limits of a sweep by default."""
ROUTER = "vllm::router"
"""The name that vllm-router gives its process."""


def test_each_router_is_a_variant_with_its_version_and_a_killed_one_fails_its_cell(
    bench: str, tmp_path: Path
) -> None:
    write_programs(tmp_path / "t.jsonl", [program("a", 40), program("b", 40)])
    options = ["--engine", "vllm", "--policies", "fcfs", "--replicas", "2"]
    options += ["--vllm-python", engine(tmp_path, dict.fromkeys(CELLS.values(), ""))]
    options += ["--router", ",".join(name.removeprefix("fcfs@") for name in CELLS)]
    options += ["--traces", "t.jsonl", "--arrivals", "closed:2", "--out", "o"]
    folders = {name: tmp_path / "o" / folder for name, folder in CELLS.items()}
    process = subprocess.Popen(
        [bench, "sweep", *options],
        cwd=tmp_path,
        env={**os.environ, "TURNSTILE_ROUTERS_PYTHON": installation().python},
        stderr=subprocess.PIPE,
        text=True,
    )
    turns = folders[KILLED] / "turns.jsonl"
    wait_until(lambda: turns.exists() and turns.stat().st_size, process=process)
    started = descendants(process.pid)
    (router,) = [pid for pid in started if name_of(pid) == ROUTER]
    struck = tmp_path / "struck"
    struck.touch()
    os.kill(router, signal.SIGKILL)
    _, complaints = process.communicate(timeout=300)
    assert process.returncode == 1, complaints

    rows = json.loads((tmp_path / "o/cells.json").read_text())
    (finished,) = [row for row in rows if row["jobs"] == 2]
    assert (finished["variant"], finished["failed_turns"]) == ("fcfs@vllm-router:round_robin", 0)
    folder = folders["fcfs@vllm-router:round_robin"]
    lines = read_lines(folder / "turns.jsonl")
    assert len(lines) == 80
    # The substitute logs no events, so nobody knows which server served a turn.
    assert not any("replica" in line for line in lines)
    assert "turns_per_replica" not in json.loads((folder / "done.json").read_text())
    found = {
        "name": "vllm-router:round_robin",
        "version": installation().version,
        "source": "vllm-router on PyPI",
    }
    assert json.loads((folder / "cell.json").read_text())["router"] == found
    described = json.loads((tmp_path / "o/sweep.json").read_text())["variants"]
    assert [each["router"] for each in described if "round_robin" in each["name"]] == [found]

    killed = Cell(folders[KILLED], struck)
    failed = killed.failed()
    assert failed is not None
    assert failed["error"].startswith("vllm-router:consistent_hash was ended by signal 9")
    assert matches(ROUTER_KILLED.message, failed["error"])
    errors = {str(line["error"]) for line in killed.lines() if line["error"] is not None}
    assert ROUTER_KILLED.error is not None
    between_turns = "cannot connect to …: connection refused"
    assert all(any(matches(m, e) for m in (ROUTER_KILLED.error, between_turns)) for e in errors)
    assert errors
    assert failed["traceback"] is None
    assert not killed.is_done()
    assert killed.noticed_within_s() < MAX_NOTICED_S
    wait_until_gone(started)


def name_of(pid: int) -> str:
    """Return the name of a process; empty if it has ended."""
    return read(f"/proc/{pid}/comm").decode().strip()
