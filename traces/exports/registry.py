"""The registry of formats that programs can be written in, the interface of such a format, and the
writing of files.

To add one, add a file in this folder, a line in `EXPORTS` and a row in `docs/howto/my-traces.md`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast

from servers.basics.atomic import write_chunks
from servers.basics.errors import CannotWrite, InvalidTrace, UnknownName
from servers.basics.nearest import did_you_mean
from servers.basics.registry import load_path
from servers.basics.text import one_line
from traces.lenient import Repairs
from traces.program import Program

EXPORTS = {
    "native": "traces.exports.native",
    "mooncake": "traces.exports.mooncake",
    "agentic-mooncake": "traces.exports.agentic_mooncake",
    "aiperf-dag": "traces.exports.aiperf_dag",
    "weka": "traces.exports.weka",
    "otel": "traces.exports.otel",
}
NATIVE = "native"
PACKED = "packed"
"""The format of `traces.stored`, which is written while files are read."""

Losses = Repairs
"""Sentences on what a format cannot express, each with the number of times it applies."""


class Export(Protocol):
    """A module with these attributes."""

    FOLDER: bool
    """Whether `write` yields files of a folder instead of lines of a file."""

    def write(self, programs: Sequence[Program], losses: Losses) -> Iterator[bytes]:
        """Yield lines with their ends, or documents. The losses are complete after the last."""


def load_export(name: str) -> Export:
    """Return the format with this name. Raises UnknownName."""
    if name not in EXPORTS:
        names = (*EXPORTS, PACKED)
        raise UnknownName(
            f"--to {name}: no format to write is called {name!r}{did_you_mean(name, names)} "
            f"(known: {', '.join(names)})"
        )
    return cast(Export, load_path(EXPORTS[name]))


SUFFIXES = (".jsonl", ".jsonl.gz")
NOT_MARKED = "token counts that were inferred are not marked in the file: they are read as recorded"


def check_export(name: str, out: Path) -> None:
    """Raise UnknownName for an unknown format, and InvalidTrace for a path that does not suit
    it."""
    where = f"--out {one_line(str(out))}"
    if not load_export(name).FOLDER:
        if not out.name.endswith(SUFFIXES):
            raise InvalidTrace(f"{where}: must end in {' or '.join(SUFFIXES)}")
        return
    remedy = f"--to {name} writes a file per job; name a new or empty folder"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        kind = "a folder with files" if out.is_dir() else "a file"
        raise InvalidTrace(f"{where}: is {kind}, but {remedy}")
    if out.suffix in (".json", ".jsonl", ".gz"):
        raise InvalidTrace(f"{where}: ends in {out.suffix} like a file, but {remedy}")


def write_export(name: str, out: Path, programs: Sequence[Program]) -> list[str]:
    """Write the programs atomically. Return sentences on how the file differs from them."""
    export = load_export(name)
    losses = Losses()
    if name != NATIVE and any(program.inferred_tokens for program in programs):
        losses.add(NOT_MARKED)
    write = _write_folder if export.FOLDER else write_chunks
    write(out, export.write(programs, losses))
    return losses.reasons()


def _write_folder(out: Path, documents: Iterable[bytes]) -> None:
    """Write the documents as numbered files."""
    partial = out.with_name(f".{out.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for number, document in enumerate(documents):
            (partial / f"session-{number:05}.json").write_bytes(document)
        partial.replace(out)
    except OSError as error:
        raise CannotWrite.of(out, error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
