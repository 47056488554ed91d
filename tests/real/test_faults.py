"""The rows of docs/reference/reliability.md for vLLM: one sweep with another fault in each cell."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from servers.processes.supervisor import descendants
from tests.faults.sweeping import Cell
from tests.faults.table import REAL, Fault, matches
from tests.faults.test_faults import rows
from tests.processes import wait_until, wait_until_gone
from tests.real.test_sweep import START_S, begin

pytestmark = pytest.mark.usefixtures("forked_vllm", "every_tensor_is_mapped")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TIMEOUTS = ("--lost-after-s", "20", "--stuck-after-s", "20")
MAX_NOTICED_S = 60.0
POLICY = "fcfs"


def _pid_of(root: int, name: bytes) -> int:
    (only,) = [pid for pid in descendants(root) if name in _command(pid)]
    return only


def _command(pid: int) -> bytes:
    """Return the command line of a process; empty if it has ended."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""


def _limit_memory(bench: int) -> None:
    worker = _pid_of(bench, WORKER)
    pages = int(Path(f"/proc/{worker}/statm").read_text().split()[0])
    resource.prlimit(worker, resource.RLIMIT_AS, (pages * PAGE_BYTES, pages * PAGE_BYTES))


WORKER, CORE = b"VLLM::Worker", b"VLLM::EngineCore"
CAUSES: dict[str, Callable[[int], None]] = {
    "worker killed": lambda bench: _signal(bench, WORKER, signal.SIGKILL),
    "core killed": lambda bench: _signal(bench, CORE, signal.SIGKILL),
    "core stopped": lambda bench: _signal(bench, CORE, signal.SIGSTOP),
    "out of memory": _limit_memory,
}


def _signal(bench: int, name: bytes, number: signal.Signals) -> None:
    os.kill(_pid_of(bench, name), number)


@pytest.fixture(scope="module")
def every_tensor_is_mapped() -> Iterator[None]:
    """With a fixed threshold C's allocator maps each tensor and unmaps it when it is freed. A limit
    on a worker's memory then stops its next step, whatever memory it has freed before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALLOC_MMAP_THRESHOLD_", "16384")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the sweep, after it has ended."""
    folder = tmp_path_factory.mktemp("faults")
    seeds = f"1..{len(REAL)}"
    sweep = begin(folder, "--jps", "5", "--policies", POLICY, "--seeds", seeds, *TIMEOUTS)
    began: set[int] = set()
    with sweep:
        for seed, row in enumerate(REAL, 1):
            cell = _cell(folder, seed)
            wait_until(partial(_has_finished_turn, cell), START_S, sweep)
            began |= set(descendants(sweep.pid))
            cell.struck.touch()
            CAUSES[row.key](sweep.pid)
        _, complaints = sweep.communicate(timeout=300)
    assert sweep.returncode == 1
    assert f"{len(REAL)} of {len(REAL)} cells failed" in complaints
    wait_until_gone(list(began))
    return folder


def _cell(folder: Path, seed: int) -> Cell:
    name = f"{POLICY}_jps5_seed{seed}"
    return Cell(folder / "o" / name, folder / f"struck-{name}")


def _has_finished_turn(cell: Cell) -> bool:
    """A first turn has finished while others are running."""
    lines = cell.folder / "turns.jsonl"
    return lines.exists() and lines.stat().st_size > 0


@rows(REAL)
def test_a_fault_of_vllm_fails_its_cell_with_the_reason(row: Fault, folder: Path) -> None:
    cell = _cell(folder, 1 + REAL.index(row))
    failed = cell.failed()
    assert failed is not None
    assert matches(row.message, failed["error"]), failed["error"]
    assert failed["traceback"] is None
    assert not cell.is_done()
    assert cell.noticed_within_s() < MAX_NOTICED_S
    errors = [line["error"] for line in cell.lines() if line["error"] is not None]
    assert any(matches(str(row.error), error) for error in errors), errors
