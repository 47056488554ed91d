"""Checksums of the files of a cell, which show whether a finished cell is damaged.

In: the folder of a cell. Out: the content of `SHA256SUMS`, in the format of `sha256sum`. A check
raises InvalidRunFolder, which names the file that has changed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from reports.run_folder.lines import COMPRESSED, RERUN
from servers.basics.errors import InvalidRunFolder

CHECKSUMS = "SHA256SUMS"
LINES = tuple(
    f"{name}{end}" for name in ("turns.jsonl", "engine.jsonl") for end in ("", COMPRESSED)
)
CELL_NUMBERS = "numbers.json.zst"
DOCUMENTS = ("cell.json", *LINES, "programs.jsonl", CELL_NUMBERS, "done.json")
"""Files that a cell may have and that reports read. Only real agents have `programs.jsonl`."""


def checksums(cell: Path, done: bytes) -> bytes:
    """Return the content of `SHA256SUMS`. `done`: the content that `done.json` will have."""
    return _lines(_sums(cell) | {"done.json": hashlib.sha256(done).hexdigest()})


def without_lines(written: bytes) -> bytes:
    """Return the content of `SHA256SUMS` without the files of turns and events."""
    ends = tuple(f"  {name}\n".encode() for name in LINES)
    return b"".join(line for line in written.splitlines(True) if not line.endswith(ends))


def check_checksums(cell: Path) -> None:
    """Raise InvalidRunFolder if the files of a finished cell are not as they were written."""
    path = cell / CHECKSUMS
    try:
        written, found = path.read_bytes(), _sums(cell)
    except FileNotFoundError as error:
        raise InvalidRunFolder(f"{error.filename}: does not exist; {RERUN}") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidRunFolder(f"{error.filename}: cannot be read: {reason}") from None
    listed = set[str]()
    for line in written.splitlines(keepends=True):
        name = line[line.find(b"  ") + 2 : -1].decode(errors="replace")
        if name not in DOCUMENTS:
            raise InvalidRunFolder(f"{path}: does not list the files of the cell; {RERUN}")
        if name not in found:
            raise InvalidRunFolder(f"{cell / name}: does not exist; {RERUN}")
        if line != _lines({name: found[name]}):
            raise InvalidRunFolder(
                f"{cell / name}: differs from its checksum in {CHECKSUMS}; {RERUN}"
            )
        listed.add(name)
    # A process that was killed in `remove_lines` leaves turns that are not listed.
    if not {*found, "done.json"}.difference(LINES) <= listed:
        raise InvalidRunFolder(f"{path}: does not list the files of the cell; {RERUN}")


def _sums(cell: Path) -> dict[str, str]:
    sums: dict[str, str] = {}
    for path in (cell / name for name in DOCUMENTS):
        if path.is_file():
            with path.open("rb") as file:
                sums[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def _lines(sums: dict[str, str]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()
