"""The rows of docs/reference/reliability.md for vLLM: one sweep with another fault in each cell."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from servers.processes.supervisor import descendants
from tests.faults.sweeping import Cell
from tests.faults.table import REAL, Fault, matches
from tests.faults.test_faults import rows
from tests.real.test_sweep import begin, until, until_gone

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PATIENCE = ("--lost-after-s", "12", "--stuck-after-s", "12")
NOTICED_S = 60.0
POLICY = "fcfs"


def _named(root: int, name: bytes) -> int:
    (found,) = [pid for pid in descendants(root) if name in _command(pid)]
    return found


def _command(pid: int) -> bytes:
    """Empty of one that is gone."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""


def _no_more_memory(bench: int) -> None:
    worker = _named(bench, WORKER)
    pages = int(Path(f"/proc/{worker}/statm").read_text().split()[0])
    resource.prlimit(worker, resource.RLIMIT_AS, (pages * PAGE_BYTES, pages * PAGE_BYTES))


WORKER, CORE = b"VLLM::Worker", b"VLLM::EngineCore"
CAUSES: dict[str, Callable[[int], None]] = {
    "worker killed": lambda bench: _signal(bench, WORKER, signal.SIGKILL),
    "core killed": lambda bench: _signal(bench, CORE, signal.SIGKILL),
    "core stopped": lambda bench: _signal(bench, CORE, signal.SIGSTOP),
    "out of memory": _no_more_memory,
}


def _signal(bench: int, name: bytes, number: signal.Signals) -> None:
    os.kill(_named(bench, name), number)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That the sweep leaves."""
    folder = tmp_path_factory.mktemp("faults")
    seeds = f"1..{len(REAL)}"
    sweep = begin(folder, "--jps", "5", "--policies", POLICY, "--seeds", seeds, *PATIENCE)
    began: set[int] = set()
    with sweep:
        for seed, row in enumerate(REAL, 1):
            cell = _cell(folder, seed)
            until(sweep, partial(_answers, cell))
            began |= set(descendants(sweep.pid))
            cell.struck.touch()
            CAUSES[row.key](sweep.pid)
        _, complaints = sweep.communicate(timeout=120)
    assert sweep.returncode == 1
    assert f"{len(REAL)} of {len(REAL)} cells failed" in complaints
    until_gone(list(began))
    return folder


def _cell(folder: Path, seed: int) -> Cell:
    name = f"{POLICY}_jps5_seed{seed}"
    return Cell(folder / "o" / name, folder / f"struck-{name}")


def _answers(cell: Cell) -> bool:
    """A first turn is over, others are under way."""
    lines = cell.folder / "turns.jsonl"
    return lines.exists() and lines.stat().st_size > 0


@rows(REAL)
def test_vllm_that_fails_is_a_failed_cell_with_the_reason(row: Fault, folder: Path) -> None:
    cell = _cell(folder, 1 + REAL.index(row))
    failed = cell.failed()
    assert failed is not None
    assert matches(row.message, failed["error"]), failed["error"]
    assert failed["traceback"] is None
    assert not cell.is_done()
    assert cell.noticed_within_s() < NOTICED_S
    errors = [line["error"] for line in cell.lines() if line["error"] is not None]
    assert any(matches(str(row.error), error) for error in errors), errors
