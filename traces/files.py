"""Finds the files of a trace. In: files, folders and names of packs. Out: a `TraceFile` per trace.

Files of one trace, such as a session and its sub-agents, are one `TraceFile`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from servers.basics.errors import InvalidTrace
from servers.basics.text import one_line
from traces.formats.registry import abouts, folder_formats, linked_formats
from traces.formats.shared.linked import group, sub_agents_of
from traces.stored import SUFFIX as STORED_SUFFIX
from traces.table import SUFFIXES as TABLE_SUFFIXES

PACKS = Path(__file__).parent / "packs"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A file to read, and further files of the same trace."""

    path: Path
    label: str
    """Its name in messages."""
    parts: tuple[Path, ...] = ()
    """All files of the trace, if there are several."""
    is_private: bool = False


def packs() -> list[str]:
    """Return the names of the packs that ship with Turnstile."""
    return sorted(path.name.removesuffix(".jsonl.gz") for path in PACKS.glob("*.jsonl.gz"))


def find_files(paths: Sequence[Path | str], *, tables: bool) -> list[TraceFile]:
    """Return each trace with its name for messages, which is relative to the given folder. If some
    are private, names have no folder, since folders are named after a person's work.

    `tables`: whether tables in folders are traces.
    """
    if not paths:
        raise InvalidTrace(
            f"no trace given; give a file, a folder, or a pack ({', '.join(packs())})"
        )
    suffixes = _suffixes() + TABLE_SUFFIXES * tables
    files = [file for path in paths for file in _files_of(path, suffixes)]
    labels = dict(files)
    groups = group([file for file, _ in files], linked_formats())
    is_private = any(found.is_private for found in groups)
    return [
        TraceFile(
            found.files[0],
            found.files[0].name if is_private else labels[found.files[0]],
            found.files if len(found.files) > 1 else (),
            is_private,
        )
        for found in groups
    ]


def names_in_messages(files: Sequence[TraceFile], *, keep_names: bool) -> list[str]:
    """Return the label of each file, or its path or number if several files have that label.

    `keep_names`: whether private files, which are named after sessions, keep their labels.
    Otherwise, they are numbered."""
    labels = Counter(file.label for file in files)
    names = []
    for number, file in enumerate(files, 1):
        if file.is_private and not keep_names:
            names.append(f"file {number}")
            continue
        again = f"{file.label} ({number})" if file.is_private else str(file.path)
        names.append(one_line(again if labels[file.label] > 1 else file.label))
    return names


def check_not_read(out: Path, paths: Sequence[Path | str]) -> None:
    """Raise InvalidTrace if the file to write is one of the files to read, or exists in a folder to
    read."""
    if not _safely(out.is_file):
        return
    where, written = f"--out {one_line(str(out))}", out.resolve()
    for path in (Path(path) for path in paths if path not in packs()):
        if _safely(path.is_dir):
            if written.is_relative_to(path.resolve()):
                raise InvalidTrace(
                    f"{where}: exists in {one_line(str(path))}, which is read; name another file"
                )
        elif _safely(path.exists) and any(
            out.samefile(read) for read in (path, *sub_agents_of(path, linked_formats()))
        ):
            raise InvalidTrace(
                f"{where}: is one of the files to read, which are not overwritten; "
                "name another file"
            )


def _suffixes() -> tuple[str, ...]:
    plain = [".json", ".jsonl", *(s for about in abouts().values() for s in about.suffixes)]
    return (*plain, *(f"{suffix}.gz" for suffix in plain), ".jsonl.zst", STORED_SUFFIX)


def _files_of(path: Path | str, suffixes: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    if isinstance(path, str) and path in packs():
        yield PACKS / f"{path}.jsonl.gz", path
        return
    path = Path(path)
    printed = one_line(str(path))
    if _safely(path.is_dir):
        folders = folder_formats()
        inside = sorted(p for p in path.rglob("*") if p.name.endswith(suffixes) and p.is_file())
        inside = [f for f in inside if not any(format.is_part(f) for format in folders)]
        if not inside:
            raise InvalidTrace(
                f"{printed}: contains no trace file; use a suffix of {', '.join(suffixes)}"
            )
        for file in inside:
            yield file, file.relative_to(path).as_posix()
    elif _safely(path.exists):
        for file in (path, *sub_agents_of(path, linked_formats())):
            yield file, file.name
    else:
        raise InvalidTrace(
            f"{printed}: no such file, folder or pack; packs are {', '.join(packs())}"
        )


def _safely(test: Callable[[], bool]) -> bool:
    """Return the result of a file test, or False for text that cannot be a file name."""
    try:
        return test()
    except OSError:
        return False
