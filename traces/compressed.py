"""Reads trace files that are compressed: gzip (suffix .gz) and Zstandard (suffix .zst).

In: a file. Out: its content as a stream that is read in bounded parts. A file that is not
in the format of its suffix, or is truncated, raises one of `DAMAGED`.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import IO, cast

import zstandard

DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
READ_BYTES = 1 << 10
"""Compressed bytes to decompress at once; Zstandard may make up to 32 MB of them."""


def decompressed(path: Path, file: IO[bytes]) -> IO[bytes]:
    """Return the content of a file, or the file itself if its suffix names no compression."""
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    return io.BufferedReader(_Zstandard(file)) if path.suffix == ".zst" else file


def plain_name(path: Path) -> str:
    """Return a file's name without the suffix of its compression."""
    return path.name.removesuffix(".gz").removesuffix(".zst")


class _Zstandard(io.RawIOBase):
    """The content of Zstandard frames. The library's own reader takes a truncated file for one that
    has ended."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        target = memoryview(cast(bytearray, buffer)).cast("B")
        while not self._content:
            if self._frame.eof:
                data = self._frame.unused_data or self._file.read(READ_BYTES)
                if not data:
                    return 0
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            elif not (data := self._file.read(READ_BYTES)):
                raise EOFError("Compressed file ended before the end of its data")
            self._content = memoryview(self._frame.decompress(data))
        count = min(len(target), len(self._content))
        target[:count] = self._content[:count]
        self._content = self._content[count:]
        return count
