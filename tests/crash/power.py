"""Simulate a power cut: a folder loses everything that was not synced, as POSIX allows.

A file keeps its content of the last fsync; a name is durable once its folder has been synced.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.crash.faults import Operation


def cut_power(folder: Path, done: Sequence[Operation]) -> None:
    """Undo the operations that a power cut may lose, the last one first."""
    for index in reversed(range(len(done))):
        operation = done[index]
        parent = str(Path(operation.to or operation.path).parent)
        if any(later.kind == "fsync" and later.path == parent for later in done[index + 1 :]):
            continue
        if operation.kind == "rename":
            os.rename(operation.to, operation.path)
        elif operation.kind == "mkdir":
            shutil.rmtree(operation.path)
        elif operation.kind == "create":
            os.unlink(operation.path)
    durable_bytes = {op.inode: op.size_bytes for op in done if op.kind == "fsync"}
    for path in folder.rglob("*"):
        if path.is_file():
            os.truncate(path, durable_bytes.get(path.stat().st_ino, 0))
