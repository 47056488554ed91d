"""The registry of trace formats, and the interface of a format.

In: the bytes of a file. Out: the format that recognises them. To add a format, add a file in this
folder, a line in `FORMATS` and a sample in `tests/traces/samples.py`. Installed packages add
formats with entry points in the group `turnstile.trace_formats`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from servers.basics.errors import InvalidPlugin
from servers.basics.registry import Registry
from traces.assumptions import Assumptions
from traces.formats.shared.linked import LinkedFormat
from traces.lenient import Repairs, clear_parsed_starts
from traces.program import Program

FORMATS = Registry(
    kind="trace format",
    group="turnstile.trace_formats",
    built_in={
        "turnstile": "traces.formats.native",
        "turns.jsonl": "traces.formats.run_turns",
        "claude-code": "traces.formats.claude_code",
        "codex": "traces.formats.codex",
        "gemini-cli": "traces.formats.gemini_cli",
        "mini-swe-agent": "traces.formats.mini_swe_agent",
        "weka": "traces.formats.weka",
        "openhands": "traces.formats.openhands",
        "azure-copilot": "traces.formats.azure_copilot",
        "tracelab": "traces.formats.tracelab",
        "agentinfer": "traces.formats.agentinfer",
        "dynamo": "traces.formats.dynamo_requests",
        "agentic-mooncake": "traces.formats.agentic_mooncake",
        "applied-compute": "traces.formats.applied_compute",
        "mooncake": "traces.formats.mooncake",
        "bailian": "traces.formats.bailian",
        "llmservingsim": "traces.formats.llmservingsim",
        "lmcache-agent": "traces.formats.lmcache_agent",
        "aiperf-dag": "traces.formats.aiperf_dag",
        "otel": "traces.formats.otel",
        "langfuse": "traces.formats.langfuse",
        "atif": "traces.formats.atif",
        "swe-agent": "traces.formats.swe_agent",
        "bfcl": "traces.formats.bfcl",
        "mlperf-endpoints": "traces.formats.mlperf_endpoints",
    },
    remedy="the path of a module with sniff and load, as my_package.my_format",
    option="--format",
)
FIRST_BYTES = 1 << 16
"""Number of bytes from which formats are first recognised."""


class TraceFormat(Protocol):
    """A format of trace files: a module with these two functions, or an object."""

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
    """Additional member of a `TraceFormat` whose files may lack token counts or tool times."""

    def load_with(
        self, data: bytes, name: str, repairs: Repairs, assumptions: Assumptions, /
    ) -> list[Program]:
        """Return what `load` returns, where `load` has the default assumptions."""


def load_format(name: str) -> TraceFormat:
    """Load a format by name or by dotted path."""
    format: TraceFormat = FORMATS.load(name)
    for function in ("sniff", "load"):
        if not callable(getattr(format, function, None)):
            raise InvalidPlugin(
                f"{name} is not a trace format: it has no {function} function; "
                "see traces.formats.registry.TraceFormat"
            )
    return format


def formats() -> Iterator[tuple[str, TraceFormat]]:
    """Yield all formats and their names. Formats of installed packages come first, since the
    built-in ones recognise files by a single field."""
    for name in [*FORMATS.installed(), *FORMATS.built_in]:
        yield name, load_format(name)


def folder_formats() -> list[FolderFormat]:
    return [format for _, format in formats() if isinstance(format, FolderFormat)]


def linked_formats() -> list[LinkedFormat]:
    return [format for _, format in formats() if isinstance(format, LinkedFormat)]


def recognise(data: bytes) -> tuple[str, TraceFormat] | None:
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
