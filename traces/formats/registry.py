"""The registry of trace formats, and what each format provides.

In: the bytes of a file. Out: the format that recognises them. Adding a format takes one file in
this folder, one line in `FORMATS` and one sample in `tests/traces/samples.py`. An installed package
adds one with an entry point in the group `turnstile.trace_formats`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from servers.errors import InvalidPlugin
from servers.registry import Registry
from traces.lenient import Repairs, forget_parsed_starts
from traces.program import Program

FORMATS = Registry(
    kind="trace format",
    group="turnstile.trace_formats",
    built_in={
        "turnstile": "traces.formats.native",
        "turns.jsonl": "traces.formats.run_turns",
        "mini-swe-agent": "traces.formats.mini_swe_agent",
        "weka": "traces.formats.weka",
        "openhands": "traces.formats.openhands",
    },
    remedy="the path of a module with sniff and load, as my_package.my_format",
    option="--format",
)
FIRST_BYTES = 1 << 16
"""Length of what a format is recognised by."""


class TraceFormat(Protocol):
    """A format of trace files: a module with these two functions, or an object."""

    def sniff(self, first_bytes: bytes, /) -> bool:
        """Whether a file that begins with these bytes, which are unpacked, is of this format.

        Called with the first `FIRST_BYTES` of a file and, where no format recognises those, with
        the whole file. Must not raise. `traces.lenient` has `document_start` for files that are one
        JSON document and `line_start` for JSON Lines.
        """

    def load(self, data: bytes, name: str, repairs: Repairs, /) -> list[Program]:
        """The programs of a file, in the order in which they are recorded.

        `data` is the whole file, unpacked; `name` is the file's name without suffixes, for a
        program without an id of its own. Whatever had to be guessed or left out is added to
        `repairs`. Raises TraceRejected where no valid program can be made.
        """


@runtime_checkable
class FolderFormat(Protocol):
    """What a `TraceFormat` also has if one trace is a folder of several files."""

    HEAD_FILE: str
    """Name of the file that stands for the folder."""

    def is_part(self, path: Path) -> bool:
        """Whether this file is read together with a head file, and is no trace of its own."""

    def read_folder(self, head: Path) -> bytes:
        """The folder as one document, which `sniff` and `load` take. Raises TraceRejected."""


def load_format(name: str) -> TraceFormat:
    """By name or by dotted path."""
    found: TraceFormat = FORMATS.load(name)
    for function in ("sniff", "load"):
        if not callable(getattr(found, function, None)):
            raise InvalidPlugin(
                f"{name} is no trace format: it has no {function} function; "
                "see traces.formats.registry.TraceFormat"
            )
    return found


def formats() -> Iterator[tuple[str, TraceFormat]]:
    """Formats of installed packages come first, since ours recognise files by a single field."""
    for name in [*FORMATS.installed(), *FORMATS.built_in]:
        yield name, load_format(name)


def folder_formats() -> list[FolderFormat]:
    return [format for _, format in formats() if isinstance(format, FolderFormat)]


def recognise(data: bytes) -> tuple[str, TraceFormat] | None:
    """The name of a file's format, and the format."""
    try:
        for first_bytes in (data[:FIRST_BYTES], data):
            for name, format in formats():
                if format.sniff(first_bytes):
                    return name, format
            if len(data) <= FIRST_BYTES:
                break
    finally:
        forget_parsed_starts()
    return None
