"""Interrupted `bench` runs, and checks of the run that the same command then completes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from reports.metrics.cells import failed_gates_of
from tests.crash.faults import Fault
from tests.crash.small_sweep import OUTPUT, ROOT, RUN, output_of
from tests.processes import session_of, wait_until_none

TIMEOUT_S = 300.0
"""Limit for every wait; the machine may be busy."""
MAX_KILLS_PER_RUN = 4
"""Kills of one run before it may complete."""


class FileVersion(NamedTuple):
    """A file's identity and content; a file rewritten with the same bytes differs."""

    inode: int
    changed_ns: int
    content: bytes


@dataclass(slots=True)
class Warm:
    """A process of `tests.crash.warm`, which runs `bench`."""

    process: subprocess.Popen[bytes]
    begun: list[int] = field(default_factory=list)
    """Process ids of the runs whose exit codes have not been read, in their order."""

    def begin(self, folder: Path, argv: Sequence[str], fault: Fault | None = None) -> int:
        """Start `bench`; return its process id, which is its session id too."""
        return self._begin([_order(folder, argv, OUTPUT, fault)])[0]

    def begin_all(self, folder: Path, argvs: Sequence[Sequence[str]]) -> list[int]:
        """Start several at once, with numbered outputs; return their process ids. `end` returns
        their exit codes in this order."""
        return self._begin([_order(folder, argv, f"{k}.{OUTPUT}") for k, argv in enumerate(argvs)])

    def _begin(self, orders: list[dict[str, Any]]) -> list[int]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(orders).encode() + b"\n")
        pids = [self._number() for _ in orders]
        self.begun += pids
        return pids

    def end(self) -> int:
        code = self._number()
        del self.begun[0]
        return code

    def end_all(self) -> None:
        """Kill the sessions of runs that a failed test has begun and not ended."""
        for session in self.begun:
            for process in session_of(session):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        while self.begun:
            self.end()

    def run(self, folder: Path, argv: Sequence[str], fault: Fault | None = None) -> int:
        """Run `bench`, wait for its whole session; return its exit code, negative if killed."""
        session = self.begin(folder, argv, fault)
        code = self.end()
        wait_for_end_of(session)
        return code

    def stopped(
        self, folder: Path, argv: Sequence[str], after_s: float, number: signal.Signals
    ) -> int:
        """Run `bench`, signal it, wait for its whole session; return its exit code.

        Only `bench` itself gets the signal, as from the kernel's out-of-memory killer; its children
        must end as well. The exit code is negative if the signal ended the process.
        """
        session = self.begin(folder, argv)
        time.sleep(after_s)
        with suppress(ProcessLookupError):  # it has already ended
            os.kill(session, number)
        code = self.end()
        wait_for_end_of(session)
        return code

    def _number(self) -> int:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], TIMEOUT_S)[0], "it does not end"
        return int(self.process.stdout.readline())


def _order(
    folder: Path, argv: Sequence[str], output: str, fault: Fault | None = None
) -> dict[str, Any]:
    faults = fault and asdict(fault)
    return {"argv": argv, "cwd": str(folder), "env": env(), "output": output, "fault": faults}


def env() -> dict[str, str]:
    """Return an environment that hides the commit, which may change while the tests run."""
    return {**os.environ, "GIT_DIR": os.devnull}


@contextmanager
def warm() -> Iterator[Warm]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.warm"],
        cwd=ROOT,
        env=env(),
        bufsize=0,  # so that `select` sees all unread bytes
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield Warm(process)


def wait_for_end_of(session: int) -> None:
    wait_until_none(partial(session_of, session), TIMEOUT_S)


def below(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files by name, hidden files too."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def contents(run: Path) -> dict[str, FileVersion]:
    """Return the files of a run, except those that were set aside."""
    stats = {name: (run / name).stat() for name in bytes_of(run)}
    return {
        name: FileVersion(stat.st_ino, stat.st_mtime_ns, (run / name).read_bytes())
        for name, stat in stats.items()
    }


def bytes_of(run: Path) -> dict[str, bytes]:
    return {name: content for name, content in below(run).items() if ".aside-" not in name}


def finished(run: Path, *, live: bool = False) -> dict[str, FileVersion]:
    """Return the files of finished cells, of a live sweep those that passed the validity gates: a
    busy machine may fail that of client lateness, and such cells are measured again."""
    cells = {
        path.parent.name
        for path in run.glob("*/done.json")
        if not live or not failed_gates_of(path.parent)
    }
    return {name: kept for name, kept in contents(run).items() if name.split("/")[0] in cells}


def broken(run: Path) -> list[tuple[str, dict[str, bytes]]]:
    """Return the files of each cell that is not finished."""
    cells = [path for path in run.glob("*_seed?") if not (path / "done.json").exists()]
    return [(cell.name, below(cell)) for cell in cells]


class Snapshot(NamedTuple):
    """The files of an interrupted run, which later runs must keep."""

    finished: dict[str, FileVersion]
    broken: list[tuple[str, dict[str, bytes]]]

    @classmethod
    def of(cls, run: Path, *, live: bool = False) -> Snapshot:
        return cls(finished(run, live=live), broken(run))

    def check_kept(self, run: Path) -> None:
        """Check that no finished cell was run again, and that the files of an unfinished cell were
        set aside until it finished, and then removed."""
        after = contents(run)
        assert {name: after[name] for name in self.finished} == self.finished
        for cell, files in self.broken:
            aside = [below(path) for path in run.glob(f"{cell}.aside-*")]
            assert files in aside or ((run / cell / "done.json").exists() and not aside)


def check_resume(
    warm: Warm,
    folder: Path,
    argv: Sequence[str],
    straight: dict[str, bytes],
    earlier: Sequence[Snapshot] = (),
) -> None:
    """Check that the same command gives the same files as an uninterrupted run."""
    left = Snapshot.of(folder / RUN)
    assert warm.run(folder, argv) == 0, output_of(folder)
    files = bytes_of(folder / RUN)
    assert files.keys() == straight.keys(), files.keys() ^ straight.keys()
    assert [name for name, content in files.items() if content != straight[name]] == []
    for before in (*earlier, left):
        before.check_kept(folder / RUN)
