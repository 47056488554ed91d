"""Options and output that the commands of `bench traces` have in common."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from harness.console import print_message
from harness.load.option import Option
from harness.load.settings import NO_ASSUMPTIONS, READING, Reading
from servers.basics.errors import InvalidTrace, NoTraceRead
from servers.basics.text import printable
from traces import Note, Program, TraceSet, read_traces
from traces.assumptions import unused_recipe
from traces.formats.native import write_programs

MAX_PRINTED_NOTES = 20
"""Limit of printed repairs and of printed rejections; --json prints all."""

Paths = Annotated[
    list[str],
    Option("Files, folders, or packs (bench list packs).", "PATH|PACK...", positional=True),
]
AsJson = Annotated[bool, Option("Print JSON instead of tables.")]
Out = Annotated[Path, Option("File to write, .jsonl or .jsonl.gz.", "FILE")]


@dataclass(frozen=True, slots=True)
class TraceReading:
    """How a command of `bench traces` reads files."""

    format: Annotated[
        str | None,
        Option("Format of all files. Default: detected by content.", "NAME|MODULE", panel=READING),
    ] = None
    reading: Reading = NO_ASSUMPTIONS


def read_files(
    paths: Sequence[str],
    how: TraceReading,
    *,
    messages: bool = False,
    json: bool = False,
    keep_names: bool = False,
    watch: bool = False,
) -> TraceSet:
    """Read traces. If no file can be read, print why each of several was rejected. `keep_names`:
    keep the names of private histories also without the option, for the person's own eyes.
    `watch`: count the fields that no reader uses."""
    options = asdict(how.reading)
    options["keep_names"] |= keep_names
    try:
        loaded = read_traces(paths, messages=messages, format=how.format, watch=watch, **options)
    except NoTraceRead as error:
        notes = [Note(file, reason) for file, reason in error.rejections]
        if json:
            print_json({"programs": [], "rejections": [note_fields(note) for note in notes]})
        if len(notes) == 1:
            raise
        print_notes("rejected", notes)
        raise InvalidTrace(f"none of the {len(notes)} files can be read as a trace") from None
    print_unused_recipe(how, [note.reason for note in loaded.repairs])
    return loaded


def print_unused_recipe(how: TraceReading, repairs: Sequence[str]) -> None:
    """Print a line if `--synthesise-gaps` had no effect. `repairs` are their reasons."""
    for message in unused_recipe(how.reading.synthesise_gaps, repairs):
        print_message(message)


def note_fields(note: Note) -> dict[str, str]:
    return {"file": note.file, "reason": note.reason}


def print_notes(kind: str, notes: Sequence[Note]) -> None:
    for note in notes[:MAX_PRINTED_NOTES]:
        print(f"{kind}: {printable(f'{note.file}: {note.reason}')}", file=sys.stderr)
    print_more(len(notes) - MAX_PRINTED_NOTES, f"{kind} (see bench traces inspect --json)")


def print_more(count: int, what: str) -> None:
    if count > 0:
        print(f"… and {count} more {what}", file=sys.stderr)


def write_trace(out: Path, programs: Sequence[Program]) -> None:
    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise InvalidTrace(f"--out {out}: must end in .jsonl or .jsonl.gz")
    write_programs(out, programs)


def print_json(value: dict[str, Any]) -> None:
    import orjson

    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
