"""`bench sweep --until` is killed in its first or second round; the same command continues."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.cells.folder import read_json
from tests.crash.faults import Fault, operations
from tests.crash.small_sweep import RUN, output_of
from tests.crash.trials import Warm, bytes_of, check_resume
from traces import Program, Turn
from traces.formats.native import write_programs

UNTIL = (
    *("sweep", "--traces", "t.jsonl", "--policies", "fcfs,program-fcfs", "--seeds", "1"),
    *("--horizon", "steady", "--until", "60%", "--out", RUN, "--workers", "1"),
)
"""One seed gives no interval, so that a second round measures seed 2 as well. With one worker the
search asks for the same cells each time."""
FIRST_ROUND, SECOND_ROUND = 10, 10
"""Cells. The search of the second seed begins near the capacities of the first."""


def sweep_folder(folder: Path) -> Path:
    folder.mkdir()
    jobs = [Program(f"job-{k}", (Turn(500 + 40 * k, 20, 0),)) for k in range(5)]
    write_programs(folder / "t.jsonl", jobs)
    return folder


def finished(folder: Path) -> int:
    return len(list((folder / RUN).glob("*/done.json")))


class Uninterrupted(NamedTuple):
    content: dict[str, bytes]
    ends: list[int]
    """Numbers of the file operations that finish a cell."""


@pytest.fixture(scope="module")
def straight(warm_of_session: Warm, tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    folder = sweep_folder(tmp_path_factory.mktemp("until") / "straight")
    run, log = str(folder / RUN), folder / "log"
    fault = Fault(run, str(log))
    assert warm_of_session.run(folder, UNTIL, fault) == 0, output_of(folder)
    assert read_json(folder / RUN / "sweep.json")["seeds"] == [1, 2]
    assert finished(folder) == FIRST_ROUND + SECOND_ROUND
    own = [operation for operation in operations(log) if operation.path.startswith(run)]
    ends = [number for number, each in enumerate(own) if each.to.endswith("/done.json")]
    return Uninterrupted(bytes_of(folder / RUN), ends)


@pytest.mark.parametrize("cells", [9, FIRST_ROUND, FIRST_ROUND + 5])
def test_killed_in_either_round_the_same_command_adds_the_same_seed_and_cells(
    warm: Warm, straight: Uninterrupted, tmp_path: Path, cells: int
) -> None:
    """The sweep is killed when the cell after this many is about to finish. The search of the
    baseline, six cells, has ended: before, finished cells keep their turns after a kill."""
    folder = sweep_folder(tmp_path / "killed")
    fault = Fault(str(folder / RUN), str(folder / "log"), straight.ends[cells], "killed")
    assert warm.run(folder, UNTIL, fault) == -signal.SIGKILL
    assert finished(folder) == cells
    check_resume(warm, folder, UNTIL, straight.content)
