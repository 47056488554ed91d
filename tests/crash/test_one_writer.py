"""Two processes that write to one folder: the second is refused or waits, and files never mix."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.cells.folder import CellFolder
from harness.cells.locks import locked
from harness.gateway.recording import recording
from servers.basics.atomic import write_file
from servers.basics.errors import CannotWrite
from tests.crash.faults import STOPPED, Fault, operations
from tests.crash.small_sweep import ALONE, RUN, output_of, sweep_folder
from tests.crash.trials import TIMEOUT_S, Warm, bytes_of, contents
from tests.processes import session_of, wait_until

IN_USE = (
    "bench: run: another bench process is writing to it; wait until it ends, or choose "
    "another --out\n"
)
ONE_CELL = (
    *("sweep", "--one", "--once", "--traces", "t.jsonl", "--policies", "fcfs"),
    *("--jps", "0.5", "--out", RUN),
)


@pytest.mark.parametrize("argv", [ALONE, ONE_CELL], ids=["sweep", "run"])
def test_a_second_writer_of_a_run_folder_is_refused_and_changes_nothing(
    warm: Warm, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    folder = sweep_folder(tmp_path)
    assert warm.run(folder, argv) == 0
    before = contents(folder / RUN)
    with locked(folder / RUN):
        assert warm.run(folder, argv) == 2
        assert output_of(folder) == IN_USE
        assert contents(folder / RUN) == before
        assert warm.run(folder, ("report", RUN)) == 0
    assert bytes_of(folder / RUN).items() >= {n: k.content for n, k in before.items()}.items()


def test_a_recording_into_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    async def record() -> None:
        async with recording([], tmp_path):
            pass

    with (
        locked(tmp_path),
        pytest.raises(ValueError, match="another bench process"),
    ):
        asyncio.run(record())
    assert os.listdir(tmp_path) == []


def test_a_file_that_many_write_at_once_always_has_the_complete_content_of_one(
    tmp_path: Path,
) -> None:
    path, versions = tmp_path / "report.html", [bytes([k]) * 300_000 for k in range(8)]
    write_file(path, versions[0])
    all_written = threading.Event()

    def read() -> int:
        reads = 0
        while True:
            assert path.read_bytes() in versions
            reads += 1
            if all_written.is_set():
                return reads

    with ThreadPoolExecutor(9) as pool:
        reading = pool.submit(read)
        list(pool.map(lambda content: write_file(path, content), versions * 4))
        all_written.set()
        assert reading.result() > 0
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_cell_is_not_taken_from_a_worker_that_still_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CellFolder(tmp_path / "cell", {"attempt": 1}):
        monkeypatch.setattr("harness.cells.folder.ORPHAN_TIMEOUT_S", 0.1)
        with pytest.raises(CannotWrite, match="still writes to it"):
            CellFolder(tmp_path / "cell", {"attempt": 2})
    assert os.listdir(tmp_path) == ["cell"]


def test_a_worker_that_outlives_its_killed_parent_writes_nothing_into_the_next_run(
    warm: Warm, straight: dict[str, bytes], tmp_path: Path
) -> None:
    counted = sweep_folder(tmp_path / "counted")
    log = counted / "log"
    assert warm.run(counted, ALONE, Fault(str(counted / RUN), str(log))) == 0
    part = f"{counted / RUN}/fcfs_jps0.5_seed1/.done.json.part"
    own = [op.path for op in operations(log) if op.path.startswith(f"{counted / RUN}")]
    done = own.index(part)
    folder = sweep_folder(tmp_path / "run")
    fault = Fault(str(folder / RUN), str(folder / "log"), done, STOPPED)
    first = warm.begin(folder, ALONE, fault)
    wait_until(lambda: [p.state for p in session_of(first)].count("T") == 1, TIMEOUT_S)
    (worker,) = [process.pid for process in session_of(first) if process.state == "T"]
    os.kill(first, signal.SIGKILL)
    warm.end()
    second = warm.begin(folder, ALONE)
    wait_until(lambda: len(session_of(second)) == 2, TIMEOUT_S)
    time.sleep(0.5)
    assert not list((folder / RUN).glob("*.aside-*"))
    os.kill(worker, signal.SIGCONT)
    assert warm.end() == 0, output_of(folder)
    assert session_of(first) == session_of(second) == []
    assert bytes_of(folder / RUN) == straight
