"""A small trace of one format, on which the contract tests run, and helpers to write and load it.

It has two programs whose prompts share a prefix, and one of them has a second turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from traces import Program, Provenance
from traces.assumptions import Assumptions
from traces.formats.registry import IncompleteFormat
from traces.lenient import Repairs


@dataclass(frozen=True)
class Sample:
    files: Mapping[str, bytes]
    """Contents by file name."""
    gap_provenance: tuple[Provenance, ...]
    """The provenance of each tool gap, in order of the programs and their turns."""
    gaps: str | None = None
    """The recipe of the gaps that the format does not record."""
    shares_prefix: bool = True
    """Whether the format records what the prompts of several programs have in common."""


def json_lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def load(format: Any, *rows: object) -> tuple[list[Program], list[str]]:
    """Return the programs of JSON Lines, and the repairs."""
    repairs = Repairs()
    return load_bytes(format, json_lines(*rows), repairs), repairs.reasons()


def load_bytes(format: Any, data: bytes, repairs: Repairs) -> list[Program]:
    """Return the programs of a file, without assumptions of the user."""
    if isinstance(format, IncompleteFormat):
        return format.load_with(data, "f", repairs, Assumptions())
    programs: list[Program] = format.load(data, "f", repairs)
    return programs


def at(second: float) -> str:
    return f"2026-06-01T00:{int(second // 60):02}:{second % 60:06.3f}+00:00"
