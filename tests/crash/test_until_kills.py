"""`bench sweep --until` is killed in its first or second round; the same command continues."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from harness.cells.folder import read_json
from tests.crash.small_sweep import RUN, output_of
from tests.crash.trials import TIMEOUT_S, Warm, bytes_of, check_resume, wait_for_end_of
from tests.processes import wait_until
from traces import Program, Turn
from traces.formats.native import write_programs

UNTIL = (
    *("sweep", "--traces", "t.jsonl", "--policies", "fcfs,program-fcfs", "--seeds", "1"),
    *("--until", "60%", "--out", RUN, "--workers", "1"),
)
"""One seed gives no interval, so that a second round measures seed 2 as well. With one worker the
search asks for the same cells each time."""
CELLS_PER_ROUND = 13


def sweep_folder(folder: Path) -> Path:
    folder.mkdir()
    jobs = [Program(f"job-{k}", (Turn(500 + 40 * k, 20, 0),)) for k in range(5)]
    write_programs(folder / "t.jsonl", jobs)
    return folder


def finished(folder: Path) -> int:
    return len(list((folder / RUN).glob("*/done.json")))


@pytest.fixture(scope="module")
def straight(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = sweep_folder(tmp_path_factory.mktemp("until") / "straight")
    assert warm.run(folder, UNTIL) == 0, output_of(folder)
    assert read_json(folder / RUN / "sweep.json")["seeds"] == [1, 2]
    assert finished(folder) == 2 * CELLS_PER_ROUND
    return bytes_of(folder / RUN)


@pytest.mark.parametrize("cells", [5, CELLS_PER_ROUND, CELLS_PER_ROUND + 5])
def test_killed_in_either_round_the_same_command_adds_the_same_seed_and_cells(
    warm: Warm, straight: dict[str, bytes], tmp_path: Path, cells: int
) -> None:
    """The sweep is killed once this many cells have finished."""
    folder = sweep_folder(tmp_path / "killed")
    session = warm.begin(folder, UNTIL)
    wait_until(lambda: (folder / RUN).exists() and finished(folder) >= cells, TIMEOUT_S)
    os.kill(session, signal.SIGKILL)
    assert warm.end() == -signal.SIGKILL
    wait_for_end_of(session)
    assert cells <= finished(folder) < 2 * CELLS_PER_ROUND
    check_resume(warm, folder, UNTIL, straight)
