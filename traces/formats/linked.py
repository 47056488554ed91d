"""Finds the files that form one trace together, and joins them to one document of JSON Lines.

A command-line agent writes a file for each session and each sub-agent, and may copy the lines of a
session that it resumes to a new file. Such files contain each other's ids. In the document, a line
`{"turnstile_file": name}` precedes the lines of each file. Paths are not kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from servers.errors import TraceRejected
from traces.lenient import MAX_BYTES, Repairs, read_bytes, text

MARKER = "turnstile_file"
SUFFIXES = (".jsonl", ".jsonl.gz")
FIRST_BYTES = 1 << 16
"""Number of bytes from which formats are recognised first."""


@runtime_checkable
class LinkedFormat(Protocol):
    """Additional members of a `TraceFormat` whose traces may consist of several files of JSON
    Lines, which are private: messages and reports name them without their folders."""

    def sniff(self, first_bytes: bytes, /) -> bool: ...

    def links(self, data: bytes, path: Path, /) -> Collection[str]:
        """Return the ids of sessions and calls in a file. Files that share one are one trace."""

    def is_sub_agent(self, path: Path, /) -> bool:
        """Return whether the file has the name of a sub-agent's file."""

    def sub_agents(self, path: Path, /) -> Sequence[Path]:
        """Return files that may be of sub-agents of this file, if it is given alone."""


@dataclass(frozen=True, slots=True)
class Part:
    """The lines of one file."""

    name: str
    lines: tuple[dict[str, Any], ...]


def stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")


@dataclass(frozen=True, slots=True)
class Group:
    """The files of one trace, those of sub-agents last."""

    files: tuple[Path, ...]
    is_linked: bool
    """Whether they have a linked format, and so are private."""


def group(files: Sequence[Path], formats: Sequence[LinkedFormat]) -> list[Group]:
    """Return the files of each trace, in order of their first files."""
    parents = list(range(len(files)))

    def root(n: int) -> int:
        while parents[n] != n:
            parents[n] = parents[parents[n]]
            n = parents[n]
        return n

    first_with: dict[str, int] = {}
    linked: set[int] = set()
    for n, file in enumerate(files):
        for link in _links(file, formats):
            linked.add(n)
            a, b = sorted((root(first_with.setdefault(link, n)), root(n)))
            parents[b] = a
    groups: dict[int, list[int]] = {}
    for n in range(len(files)):
        groups.setdefault(root(n), []).append(n)
    return [
        Group(tuple(sorted((files[n] for n in members), key=_is_sub_agent(formats))), n in linked)
        for n, members in groups.items()
    ]


def with_sub_agents(file: Path, formats: Sequence[LinkedFormat]) -> Group:
    """Return a file that is given alone, with those of its sub-agents."""
    if not _links(file, formats):
        return Group((file,), is_linked=False)
    others = sorted({path for f in formats for path in f.sub_agents(file)} - {file})
    return next(found for found in group([file, *others], formats) if file in found.files)


def _is_sub_agent(formats: Sequence[LinkedFormat]) -> Callable[[Path], bool]:
    return lambda path: any(format.is_sub_agent(path) for format in formats)


def _links(file: Path, formats: Sequence[LinkedFormat]) -> set[str]:
    if not file.name.endswith(SUFFIXES):
        return set()
    try:
        data = read_bytes(file)
    except TraceRejected:  # reported when the file is read
        return set()
    return {link for f in formats if f.sniff(data[:FIRST_BYTES]) for link in f.links(data, file)}


def join(files: Sequence[Path]) -> bytes:
    """Return the document of several files. Raises TraceRejected if one of them cannot be read."""
    parts: list[bytes] = []
    for file in files:
        try:
            data = read_bytes(file)
        except TraceRejected as error:
            raise TraceRejected(f"{file.name}, which belongs to it: {error}") from None
        parts += [json.dumps({MARKER: stem(file)}).encode(), data.strip(b"\n")]
        if sum(map(len, parts)) > MAX_BYTES:
            raise TraceRejected(
                f"its {len(files)} files are larger than {MAX_BYTES >> 20} MiB together; "
                "give fewer of them"
            )
    return b"\n".join(parts)


def split(data: bytes, name: str, repairs: Repairs) -> list[Part]:
    """Return the files of a document, or one of the given name, without malformed lines."""
    parts: list[tuple[str, list[dict[str, Any]]]] = []
    for line in _objects(data, repairs):
        if isinstance(line.get(MARKER), str):
            parts.append((text(line[MARKER]), []))
            continue
        if not parts:
            parts.append((name, []))
        parts[-1][1].append(line)
    return [Part(part, tuple(lines)) for part, lines in parts]


def _objects(data: bytes, repairs: Repairs) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            repairs.add("a line that is truncated or not JSON: left out")
            continue
        if isinstance(value, dict):
            yield value
        else:
            repairs.add("a line that is not a JSON object: left out")
