"""Files that are there whole or not at all, whenever the process is killed or the power goes.

What has to last goes to the disk in this order: the file, its name, the folder that has the name.
Two processes that write one file do it one after the other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from servers.errors import CannotWrite

OTHER_WITHIN_S = 30.0
"""How long another process may take to write the same file."""
LOOK_EVERY_S = 0.05
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF)
"""Of file systems over a network."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes `path` when all is written; folders are made, links are
    followed. Raises CannotWrite, and leaves what stood there."""
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    part = path.with_name(f".{path.name}.part")
    try:
        make_folder(path.parent)
        with _alone(part):
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
    """A pipe or a terminal is written as it is."""
    if not (path.is_char_device() or path.is_fifo()):
        with whole(path) as part:
            _write(part, content)
        return
    try:
        _write(path, content)
    except OSError as error:
        raise CannotWrite.of(path, error) from None


def _write(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        write_all(handle, content)
    finally:
        os.close(handle)


def write_all(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def refuse_unwritable(path: Path) -> None:
    """Before the long work whose result is to stand there. Raises CannotWrite."""
    make_folder(path.parent)
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise CannotWrite.of(path, error) from None


def make_folder(path: Path) -> None:
    """With those above it."""
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
    """A file's content, or a folder's names, down to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that knows no such thing for folders
            raise
    finally:
        os.close(handle)


@contextmanager
def _alone(part: Path) -> Iterator[None]:
    """No other process writes `part` meanwhile. One that died leaves it free."""
    while True:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            if not _held(handle):
                raise BlockingIOError(errno.EAGAIN, "another process is writing it")
            if _is(handle, part):
                yield
                return
        finally:
            os.close(handle)


def _held(handle: int) -> bool:
    try:
        return hold(handle, OTHER_WITHIN_S)
    except OSError as error:
        if error.errno in NO_LOCKS:  # then two writers of one file are the user's to avoid
            return True
        raise


def _is(handle: int, path: Path) -> bool:
    """And not what bore that name until the other had finished."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def hold(handle: int, within_s: float) -> bool:
    """The kernel's lock on an open file or folder, until all copies of the handle are closed.
    False where another had it all the time."""
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(LOOK_EVERY_S)
        else:
            return True
