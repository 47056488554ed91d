"""The registry of formats that programs can be written in, and the interface of such a format.

To add one, add a file in this folder, a line in `EXPORTS` and a row in `docs/howto/my-traces.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, cast

from servers.basics.errors import UnknownName
from servers.basics.nearest import did_you_mean
from servers.basics.registry import load_path
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
