"""Turnstile's own format, which expresses everything (`traces.formats.native`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traces.formats.native import program_line
from traces.lenient import Repairs
from traces.program import Program

FOLDER = False


def write(programs: Sequence[Program], _losses: Repairs) -> Iterator[bytes]:
    return map(program_line, programs)
