"""`bench` runs that are broken off, and what has to hold when the same command ended them."""

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from tests.crash.faults import Fault
from tests.crash.small_sweep import ROOT, RUN, output_of

WITHIN_S = 120.0
"""For anything; the machine may have other work to do."""
IN_A_ROW = 4
"""Kills of one run before it may end."""


class Kept(NamedTuple):
    """A file, so that one written anew with the same bytes is another."""

    inode: int
    changed_ns: int
    content: bytes


@dataclass(slots=True)
class Warm:
    """`tests.crash.warm`, one `bench` at a time."""

    process: subprocess.Popen[bytes]

    def begin(self, folder: Path, argv: Sequence[str], fault: Fault | None = None) -> int:
        """Its process id, which is its session's too."""
        order = {"argv": argv, "cwd": str(folder), "fault": fault and asdict(fault)}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        return self._number()

    def end(self) -> int:
        return self._number()

    def run(self, folder: Path, argv: Sequence[str], fault: Fault | None = None) -> int:
        """Its exit code, negative where it was killed. Nothing of it is left."""
        session = self.begin(folder, argv, fault)
        code = self.end()
        until_nothing_of(session)
        return code

    def stopped(
        self, folder: Path, argv: Sequence[str], after_s: float, number: signal.Signals
    ) -> int:
        """The exit code, negative where the signal ended it. As the kernel's out-of-memory killer
        does it, the signal goes to one process, not to all that it started; yet nothing of those is
        left."""
        session = self.begin(folder, argv)
        time.sleep(after_s)
        with suppress(ProcessLookupError):  # it has ended by itself
            os.kill(session, number)
        code = self.end()
        until_nothing_of(session)
        return code

    def _number(self) -> int:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], WITHIN_S)[0], "it does not end"
        return int(self.process.stdout.readline())


def env() -> dict[str, str]:
    """Without our commit: one may be made while the tests run."""
    return {**os.environ, "GIT_DIR": os.devnull}


@contextmanager
def warm() -> Iterator[Warm]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.warm"],
        cwd=ROOT,
        env=env(),
        bufsize=0,  # so that `select` knows of all that was not read
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield Warm(process)


def until_nothing_of(session: int) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while left := session_of(session):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.005)


def session_of(session: int) -> list[tuple[int, str]]:
    """Its processes, and their states (`man proc`); without zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, its = path.read_text().rpartition(")")[2].split()[:4]
            if int(its) == session and state != "Z":
                found.append((int(path.parent.name), state))
    return found


def below(folder: Path) -> dict[str, bytes]:
    """Its files by name, hidden ones too."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def contents(run: Path) -> dict[str, Kept]:
    """Of all but what was set aside."""
    found = {name: (run / name).stat() for name in bytes_of(run)}
    return {
        name: Kept(stat.st_ino, stat.st_mtime_ns, (run / name).read_bytes())
        for name, stat in found.items()
    }


def bytes_of(run: Path) -> dict[str, bytes]:
    return {name: content for name, content in below(run).items() if ".aside-" not in name}


def finished(run: Path) -> dict[str, Kept]:
    """What is in finished cells."""
    cells = {path.parent.name for path in run.glob("*/done.json")}
    return {name: kept for name, kept in contents(run).items() if name.split("/")[0] in cells}


def broken(run: Path) -> list[tuple[str, dict[str, bytes]]]:
    """What is in each of the others."""
    cells = [path for path in run.glob("*_seed1") if not (path / "done.json").exists()]
    return [(cell.name, below(cell)) for cell in cells]


class Left(NamedTuple):
    """By a broken run, for the next ones to keep."""

    finished: dict[str, Kept]
    broken: list[tuple[str, dict[str, bytes]]]

    @classmethod
    def by(cls, run: Path) -> Left:
        return cls(finished(run), broken(run))

    def stays(self, run: Path) -> None:
        """No finished cell was run again. What a broken cell held was set aside until it was
        finished, and then removed."""
        after = contents(run)
        assert {name: after[name] for name in self.finished} == self.finished
        for cell, files in self.broken:
            aside = [below(path) for path in run.glob(f"{cell}.aside-*")]
            assert files in aside or ((run / cell / "done.json").exists() and not aside)


def resumes(
    warm: Warm,
    folder: Path,
    argv: Sequence[str],
    straight: dict[str, bytes],
    earlier: Sequence[Left] = (),
) -> None:
    """The same command again gives what an uninterrupted run gives."""
    left = Left.by(folder / RUN)
    assert warm.run(folder, argv) == 0, output_of(folder)
    found = bytes_of(folder / RUN)
    assert found.keys() == straight.keys()
    assert [name for name, content in found.items() if content != straight[name]] == []
    for one in (*earlier, left):
        one.stays(folder / RUN)
