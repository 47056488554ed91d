"""The registry of trace formats, and the interface of a format.

In: the bytes of a file. Out: the format that recognises them. Each module in this folder with an
`ABOUT` is a format. Installed packages add formats with entry points in the group
`turnstile.trace_formats`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from servers.basics.errors import InvalidPlugin, UnknownName
from servers.basics.registry import Registry, load_path
from traces.assumptions import Assumptions
from traces.formats.about import About
from traces.formats.shared.linked import LinkedFormat
from traces.lenient import Repairs, clear_parsed_starts
from traces.program import Program

PACKAGE = "turnstile-formats"
PACKAGED = {
    "agentinfer": (("session_id", "actor_id", "started_at", "input_tokens"),),
    "aiperf-dag": (("session_id", "turns.messages", "turns.max_tokens"),),
    "applied-compute": (("input_prompt_length", "assistant_response_length"),),
    "azure-copilot": (("session_id", "date", "turns.llm_calls"),),
    "bailian": (("chat_id", "parent_chat_id", "input_length", "output_length"),),
    "bfcl": (("id", "result", "input_token_count", "output_token_count"),),
    "llmservingsim": (
        ("input_toks", "output_toks", "arrival_time_ns"),
        ("arrival_time_ns", "sub_requests.input_toks", "sub_requests.output_toks"),
    ),
    "lmcache-agent": (("session_id", "timestamp", "input", "output"),),
    "mlperf-endpoints": (("conversation_id", "turn", "role"),),
    "tracelab": (("session_id", "round_index", "input_tokens_total", "output_tokens"),),
}
"""The formats of `PACKAGE`, with `About.keys`: their files are recognised without the package."""
NOT_INSTALLED = f"which needs a package: pip install {PACKAGE}"
FOLDER = str(Path(__file__).parent)
FIRST_BYTES = 1 << 16
"""Number of bytes from which formats are first recognised."""


class TraceFormat(Protocol):
    """A format of trace files, unless it is an `IncompleteFormat`: a module with these two
    functions, or an object. It may have an `About` in `ABOUT`, as all of ours do."""

    def sniff(self, first_bytes: bytes, /) -> bool:
        """Return whether a file that begins with these decompressed bytes has this format.

        Called with the first `FIRST_BYTES` of a file and, if no format recognises those, with the
        whole file. Must not raise. `traces.lenient` has `document_start` for files with one JSON
        document and `line_start` for JSON Lines.
        """

    def load(self, data: bytes, name: str, repairs: Repairs, /) -> list[Program]:
        """Return the programs of a file, in recorded order.

        `data` is the whole decompressed file; `name` is the file's name without suffixes, the id of
        a program without one. Report everything that was guessed or left out to `repairs`. Raises
        TraceRejected if the file has no valid program.
        """


@runtime_checkable
class FolderFormat(Protocol):
    """Additional members of a `TraceFormat` whose traces are folders of several files."""

    HEAD_FILE: str
    """Name of the file that represents the folder."""

    def is_part(self, path: Path) -> bool:
        """Return whether this file is read as part of a folder, and is not a separate trace."""

    def read_folder(self, head: Path) -> bytes:
        """Return the folder as one document for `sniff` and `load`. Raises TraceRejected."""


@runtime_checkable
class IncompleteFormat(Protocol):
    """A format whose files may lack token counts or tool times: `load_with` takes the place of a
    `TraceFormat`'s `load`."""

    def sniff(self, first_bytes: bytes, /) -> bool: ...

    def load_with(
        self, data: bytes, name: str, repairs: Repairs, assumptions: Assumptions, /
    ) -> list[Program]:
        """Return what `load` would, with what the user lets the reader assume."""


@cache
def known_formats() -> Registry:
    """Return the registry of formats. The first call imports all of ours."""
    paths = [f"{__package__}.{found.name}" for found in pkgutil.iter_modules([FOLDER])]
    abouts = [(path, getattr(load_path(path), "ABOUT", None)) for path in paths]
    ours = [(about.order, about.name, path) for path, about in abouts if about is not None]
    return Registry(
        kind="trace format",
        group="turnstile.trace_formats",
        built_in={name: path for _, name, path in sorted(ours)},
        remedy="the path of a module with sniff and load, as my_package.my_format",
        option="--format",
    )


def load_format(name: str) -> TraceFormat | IncompleteFormat:
    """Load a format by name or by dotted path."""
    known = known_formats()
    if name in PACKAGED and name not in known.names():
        raise UnknownName(
            f"--format {name}: this format is in a package of its own: pip install {PACKAGE}"
        )
    format: TraceFormat | IncompleteFormat = known.load(name)
    for function, other in (("sniff", "sniff"), ("load", "load_with")):
        if not any(callable(getattr(format, name, None)) for name in (function, other)):
            raise InvalidPlugin(
                f"{name} is not a trace format: it has no {function} function; "
                "see traces.formats.registry.TraceFormat"
            )
    return format


def formats() -> Iterator[tuple[str, TraceFormat | IncompleteFormat]]:
    """Yield all formats and their names. Formats of installed packages come first, so that they
    can take files that ours would."""
    known = known_formats()
    for name in [*known.installed(), *known.built_in]:
        yield name, load_format(name)


def abouts() -> dict[str, About]:
    """Return what is declared of each format, by its name."""
    declared = {name: getattr(format, "ABOUT", None) for name, format in formats()}
    return {name: about for name, about in declared.items() if isinstance(about, About)}


def folder_formats() -> list[FolderFormat]:
    return [format for _, format in formats() if isinstance(format, FolderFormat)]


def linked_formats() -> list[LinkedFormat]:
    return [format for _, format in formats() if isinstance(format, LinkedFormat)]


def recognise(data: bytes) -> tuple[str, TraceFormat | IncompleteFormat] | None:
    """Return the name of a file's format and the format; None if it is unknown."""
    try:
        for first_bytes in (data[:FIRST_BYTES], data):
            for name, format in formats():
                if format.sniff(first_bytes):
                    return name, format
            if len(data) <= FIRST_BYTES:
                break
    finally:
        clear_parsed_starts()
    return None
