"""Finds the files that together form one trace, and joins them into one JSON Lines document.

A command-line agent writes a file for each session and each sub-agent, and may copy the lines of a
session that it resumes to a new file. Such files contain each other's ids. In the document, a line
`{"turnstile_file": name}` precedes the lines of each file. Paths are not kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import text
from traces.compressed import plain_name
from traces.lenient import MAX_BYTES, Repairs, line_start, mapping, read_bytes

MARKER = "turnstile_file"
MARKER_START = b'{"turnstile_file"'
_TIME = re.compile(rb'"timestamp"\s*:\s*"([^"\\]{1,40})"')
LINES_TO_CHECK = 20
"""One of this many first lines of a file must be a line of a session."""
START_BYTES = 1 << 16
"""Number of bytes from which a linked format is recognised."""


@runtime_checkable
class LinkedFormat(Protocol):
    """Additional members of a `TraceFormat` whose traces may consist of several JSON Lines files
    and are private: messages and reports do not name their folders."""

    def sniff(self, first_bytes: bytes, /) -> bool: ...

    def links(self, data: bytes, path: Path, /) -> Collection[str]:
        """Return the ids of sessions and calls in a file. Files that share an id form one trace."""


@runtime_checkable
class NamedSubAgents(Protocol):
    """Additional members of a `LinkedFormat` in which names tell the files of sub-agents."""

    def is_sub_agent(self, path: Path, /) -> bool:
        """Return whether the file has the name of a sub-agent's file."""

    def sub_agents(self, path: Path, /) -> Sequence[Path]:
        """Return files that may belong to sub-agents of this file, if it is given alone."""


@dataclass(frozen=True, slots=True)
class DocumentFile:
    """One file of a document."""

    name: str
    encoded: list[bytes]

    def lines(self, repairs: Repairs) -> Iterator[JsonObject]:
        """Decode one line after the other, and leave out those that are malformed."""
        for line in self.encoded:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                repairs.add("a line that is truncated or not JSON: left out")
                continue
            if isinstance(value, dict):
                yield value
            else:
                repairs.add("a line that is not a JSON object: left out")

    @property
    def whole(self) -> bytes:
        """The file as one document."""
        return b"\n".join(self.encoded)

    @property
    def last_timestamp(self) -> bytes:
        """The latest time in the time field of a line, as text; b"" if there is none."""
        return max((time for line in self.encoded for time in _TIME.findall(line)), default=b"")


def stem(path: Path) -> str:
    return plain_name(path).removesuffix(".jsonl").removesuffix(".json")


@dataclass(frozen=True, slots=True)
class LinkedFiles:
    """The files of one trace, with sub-agents' files last."""

    files: tuple[Path, ...]
    is_private: bool
    """Whether the files have a linked format."""


def group(files: Sequence[Path], formats: Sequence[LinkedFormat]) -> list[LinkedFiles]:
    """Return the files of each trace, in order of their first files."""
    parents = list(range(len(files)))

    def root(n: int) -> int:
        while parents[n] != n:
            parents[n] = parents[parents[n]]
            n = parents[n]
        return n

    first_with: dict[str, int] = {}
    private: set[int] = set()
    for n, file in enumerate(files):
        if not (found := _formats_of(file, formats)):
            continue
        private.add(n)
        for link in _links(file, found):
            a, b = sorted((root(first_with.setdefault(link, n)), root(n)))
            parents[b] = a
    groups: dict[int, dict[Path, None]] = {}
    for n, file in enumerate(files):
        groups.setdefault(root(n), {})[file] = None
    return [
        LinkedFiles(tuple(sorted(members, key=_is_sub_agent(formats))), n in private)
        for n, members in groups.items()
    ]


def sub_agents_of(file: Path, formats: Sequence[LinkedFormat]) -> list[Path]:
    """Return the files that may belong to sub-agents of a file that is given alone."""
    named = [format for format in _formats_of(file, formats) if isinstance(format, NamedSubAgents)]
    return sorted({path for format in named for path in format.sub_agents(file)})


def _is_sub_agent(formats: Sequence[LinkedFormat]) -> Callable[[Path], bool]:
    named = [format for format in formats if isinstance(format, NamedSubAgents)]
    return lambda path: any(format.is_sub_agent(path) for format in named)


def _links(file: Path, formats: Sequence[LinkedFormat]) -> set[str]:
    try:
        data = read_bytes(file)
    except TraceRejected:  # reported when the file is read
        return set()
    return {link for format in formats for link in format.links(data, file)}


def _formats_of(file: Path, formats: Sequence[LinkedFormat]) -> list[LinkedFormat]:
    try:
        first_bytes = read_bytes(file, START_BYTES)
    except TraceRejected:
        return []
    return [format for format in formats if format.sniff(first_bytes)]


def join(files: Sequence[Path]) -> bytes:
    """Return the document of several files. Raises TraceRejected if one of them cannot be read."""
    parts: list[bytes] = []
    for file in files:
        try:
            data = read_bytes(file)
        except TraceRejected as error:
            raise TraceRejected(f"{file.name}, which is part of this trace: {error}") from None
        parts += [json.dumps({MARKER: stem(file)}).encode(), data.strip(b"\n")]
        if sum(map(len, parts)) > MAX_BYTES:
            raise TraceRejected(
                f"its {len(files)} files are larger than {MAX_BYTES >> 20} MiB together; "
                "give fewer of them"
            )
    return b"\n".join(parts)


def first_lines(first_bytes: bytes) -> Iterator[JsonObject]:
    """Yield the objects on the first lines of a document, the last of which may be truncated."""
    begin = 0
    for _ in range(LINES_TO_CHECK):
        end = first_bytes.find(b"\n", begin)
        line = first_bytes[begin : end if end >= 0 else None]
        value = mapping(line_start(line))
        if MARKER not in value:
            yield value
        if end < 0:
            break
        begin = end + 1


def split(data: bytes, name: str) -> list[DocumentFile]:
    """Return the files of a document, or one of the given name."""
    parts: list[DocumentFile] = []
    for line in data.split(b"\n"):
        if line.startswith(MARKER_START) and (named := _named(line)) is not None:
            parts.append(DocumentFile(named, []))
        elif line and not line.isspace():
            if not parts:
                parts.append(DocumentFile(name, []))
            parts[-1].encoded.append(line)
    return parts


def _named(line: bytes) -> str | None:
    """Return the name of a file in the line before its lines."""
    try:
        name = mapping(json.loads(line)).get(MARKER)
    except (ValueError, RecursionError):
        return None
    return text(name) if isinstance(name, str) else None
