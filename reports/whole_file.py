"""Files that are there whole or not at all, whenever the process is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Unwritable(ValueError):
    """The folder cannot take a file."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes `path` when all is written; folders are made."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Unwritable(f"cannot write {path}: {reason}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_file(path: Path, content: bytes) -> None:
    with whole(path) as temporary:
        temporary.write_bytes(content)
