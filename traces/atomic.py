"""Writes files atomically, so that an error leaves an existing file unchanged."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from servers.errors import CannotWrite

GZIP = 31
"""zlib's number of a gzip container. Its header has no name and no time, so that equal contents
give equal bytes."""


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file from its parts, compressed if its suffix is .gz, and make its folder. Raises
    CannotWrite."""
    data = _compressed(chunks) if path.suffix == ".gz" else chunks
    partial: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.writelines(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(partial, 0o666 & ~umask)
        os.replace(partial, path)
    except BaseException as error:
        if partial is not None:
            with suppress(OSError):
                os.unlink(partial)
        if isinstance(error, OSError):
            raise CannotWrite.of(path, error) from None
        raise


def _compressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    packing = zlib.compressobj(9, zlib.DEFLATED, GZIP)
    for chunk in chunks:
        yield packing.compress(chunk)
    yield packing.flush()
