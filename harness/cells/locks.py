"""Locks run folders: only one sweep, or the shards of one sweep, may write to a folder.

A sweep locks the folder itself, which needs no file. Only processes on the same machine see such a
lock. A shard therefore also locks a file in the folder, which all machines see on network file
systems that support locks. On other file systems, users must start each shard only once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from servers.basics.atomic import exclusive, take_lock
from servers.basics.errors import CannotWrite, InvalidInput

T = TypeVar("T")
MAX_SHARDS = 10_000
PLAN_LOCK = ".plan.lock"
"""Locked while a shard compares its plan with the plan in the folder."""
_SHARD_LOCK = re.compile(r"\.shard-([0-9]+)-of-([0-9]+)\.lock")


@dataclass(frozen=True, slots=True)
class Shard:
    """The share of a sweep's cells that one of several processes runs (`--shard 3/16`)."""

    number: int
    """From 1."""
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def share(self, values: Sequence[T]) -> list[T]:
        """Return this shard's values. Each round deals one value to every shard and begins with
        another shard, so that no shard gets the same policy in every round."""
        return [
            value
            for index, value in enumerate(values)
            if (index + index // self.count) % self.count == self.number - 1
        ]


def parse_shard(text: str) -> Shard:
    """Raises InvalidInput."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None:
        raise InvalidInput(f"--shard {text!a}: give a number and a count, such as 3/16")
    number, count = int(found[1]), int(found[2])
    if not 1 <= count <= MAX_SHARDS:
        raise InvalidInput(f"--shard {text}: must be of 1 to {MAX_SHARDS:,} shards")
    if not 1 <= number <= count:
        raise InvalidInput(f"--shard {text}: the number must be from 1 to {count}")
    return Shard(number, count)


def is_lock(path: Path) -> bool:
    return path.name == PLAN_LOCK or _SHARD_LOCK.fullmatch(path.name) is not None


@contextmanager
def locked(folder: Path, shard: Shard | None = None) -> Iterator[None]:
    """Lock a run folder, so that only one sweep, or the shards of one sweep, can write to it. The
    kernel releases the lock when the process ends."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise CannotWrite.of(folder, error) from None
    try:
        if not lock_folder(folder, handle, 0, shared=shard is not None):
            raise InvalidInput(
                f"{folder}: another bench process is writing to it; wait until it ends, or choose "
                "another --out"
            )
        if shard is None:
            _refuse_shards(folder)
            yield
        else:
            with _shard_locked(folder, shard):
                yield
    finally:
        os.close(handle)


def lock_folder(folder: Path, handle: int, timeout_s: float, *, shared: bool = False) -> bool:
    """Return whether the folder was locked in time."""
    try:
        return take_lock(handle, timeout_s, shared=shared)
    except OSError as error:  # some file systems, e.g. NFS, cannot lock folders
        raise CannotWrite.of(folder, error) from None


@contextmanager
def _shard_locked(folder: Path, shard: Shard) -> Iterator[None]:
    path = folder / f".shard-{shard.number}-of-{shard.count}.lock"
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(path, 0))
        except BlockingIOError:
            raise _in_use(folder, shard) from None
        except OSError as error:
            raise CannotWrite.of(path, error) from None
        stack.callback(path.unlink, missing_ok=True)
        _refuse_shards(folder, shard.count)
        yield


@contextmanager
def plan_locked(folder: Path) -> Iterator[None]:
    """Keep other shards from comparing or writing the plan of the folder."""
    path = folder / PLAN_LOCK
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(path))
        except OSError as error:
            raise CannotWrite.of(path, error) from None
        stack.callback(path.unlink, missing_ok=True)
        yield


def _refuse_shards(folder: Path, count: int | None = None) -> None:
    """Raise InvalidInput if a shard of a sweep with another number of shards is running. Remove the
    lock files that such shards left when they were killed."""
    for path in sorted(folder.iterdir()):
        found = _SHARD_LOCK.fullmatch(path.name)
        if found is None or int(found[2]) == count:
            continue
        try:
            with exclusive(path, 0), suppress(FileNotFoundError):
                path.unlink()
        except BlockingIOError:
            raise _in_use(folder, Shard(int(found[1]), int(found[2]))) from None


def _in_use(folder: Path, shard: Shard) -> InvalidInput:
    return InvalidInput(
        f"{folder}: another process runs shard {shard} of it; wait until it ends, or choose "
        "another --out"
    )
