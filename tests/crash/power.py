"""What a power cut leaves: a folder without all that was not synced, as POSIX allows it.

A file keeps what it had at its last fsync; a name lasts once its folder was synced.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.crash.faults import Operation


def cut_power(folder: Path, done: Sequence[Operation]) -> None:
    """Undoes what may be lost, last first."""
    for place in reversed(range(len(done))):
        operation = done[place]
        above = str(Path(operation.to or operation.path).parent)
        if any(later.kind == "fsync" and later.path == above for later in done[place + 1 :]):
            continue
        if operation.kind == "rename":
            os.rename(operation.to, operation.path)
        elif operation.kind == "mkdir":
            shutil.rmtree(operation.path)
        elif operation.kind == "create":
            os.unlink(operation.path)
    lasting = {op.inode: op.size_bytes for op in done if op.kind == "fsync"}
    for path in folder.rglob("*"):
        if path.is_file():
            os.truncate(path, lasting.get(path.stat().st_ino, 0))
