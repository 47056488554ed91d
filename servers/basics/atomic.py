"""Writes files atomically: a file is complete or absent, even if the process is killed.

To survive a power failure, a file is synced before it is renamed, and its folder after that.
Processes that write the same file wait for each other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from servers.basics.errors import CannotWrite

GZIP = 31
"""zlib's number of a gzip container. Its header has no name and no time, so that equal contents
give equal bytes."""
LOCK_TIMEOUT_S = 30.0
"""Seconds to wait for another process that writes the same file."""
LOCK_POLL_S = 0.05
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF)
"""Errors of network file systems that do not support locks."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` at the end.

    Missing folders are created and symbolic links are followed. On an error, an existing file at
    `path` is unchanged. Raises CannotWrite.
    """
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    part = path.with_name(f".{path.name}.part")
    try:
        make_folder(path.parent)
        with exclusive(part):
            try:
                yield part
                with suppress(FileNotFoundError):
                    os.chmod(part, stat.S_IMODE(os.stat(path).st_mode))
                sync(part)
                os.replace(part, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(part)
                raise
            sync(path.parent)
    except OSError as error:
        raise CannotWrite.of(path, error) from None


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically; a pipe or a terminal is written directly. Raises CannotWrite."""
    if not (path.is_char_device() or path.is_fifo()):
        with atomic_path(path) as part:
            _write(part, content)
        return
    try:
        _write(path, content)
    except OSError as error:
        raise CannotWrite.of(path, error) from None


def write_chunks(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file atomically from its parts, compressed if its suffix is .gz. Raises
    CannotWrite."""
    if path.suffix == ".gz":
        chunks = _compressed(chunks)
    with atomic_path(path) as part, part.open("wb") as file:
        file.writelines(chunks)


def _compressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    packing = zlib.compressobj(9, zlib.DEFLATED, GZIP)
    for chunk in chunks:
        yield packing.compress(chunk)
    yield packing.flush()


def _write(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        write_all(handle, content)
    finally:
        os.close(handle)


def write_all(handle: int, content: bytes) -> None:
    """Write all bytes, where `os.write` may write fewer."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def refuse_unwritable(path: Path) -> None:
    """Check before long work that its result can be written to `path`. Raises CannotWrite."""
    make_folder(path.parent)
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise CannotWrite.of(path, error) from None


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and sync them. Raises CannotWrite."""
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(folder)
            sync(folder.parent)
        if not path.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    except OSError as error:
        raise CannotWrite.of(path, error) from None


def sync(path: Path) -> None:
    """Flush the content of a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # This file system cannot sync folders.
            raise
    finally:
        os.close(handle)


@contextmanager
def exclusive(path: Path, within_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Create the file if it is absent, and lock it against other processes. The kernel frees the
    lock of a dead process. Inside, the file may be renamed or removed.

    Raises BlockingIOError if another process had the lock for `within_s` seconds.
    """
    while True:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            if not _lock(handle, within_s):
                raise BlockingIOError(errno.EAGAIN, "another process is writing it")
            if _is_at(handle, path):
                yield
                return
        finally:
            os.close(handle)


def _lock(handle: int, within_s: float) -> bool:
    try:
        return take_lock(handle, within_s)
    except OSError as error:
        if error.errno in NO_LOCKS:  # Without locks, users must avoid concurrent writers.
            return True
        raise


def _is_at(handle: int, path: Path) -> bool:
    """Return whether the open file is still at `path`: another process may have renamed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def take_lock(handle: int, within_s: float, *, shared: bool = False) -> bool:
    """Lock an open file or folder until all copies of the handle are closed. Several processes can
    have a shared lock at the same time.

    Return False if another process had the lock for `within_s` seconds.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(LOCK_POLL_S)
        else:
            return True
