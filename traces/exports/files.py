"""Writes programs as a file, or a folder of files, in a format of `traces.exports.registry`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from servers.basics.atomic import write_chunks
from servers.basics.errors import CannotWrite, InvalidTrace
from servers.basics.text import one_line
from traces.exports.registry import NATIVE, Losses, load_export
from traces.program import Program

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
