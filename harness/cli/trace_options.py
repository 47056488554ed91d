"""Options and output that the commands of `bench traces` have in common."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from servers.errors import InvalidTrace, NoTraceRead
from traces import RECIPES, Note, Program, TraceSet, read_traces
from traces.formats.native import write_programs
from traces.lenient import printable

MAX_PRINTED_NOTES = 20
"""Limit of printed repairs and of printed rejections; --json prints all."""

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH|PACK...", help="Files, folders, or packs (bench list packs)."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="NAME|MODULE", help="Format of all files. Default: detected by content."
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FILE",
        help="Counts the tokens of files that record only text: a model's tokenizer.json. Default: "
        "by the number of characters.",
    ),
]
SynthesiseGaps = Annotated[
    str | None,
    typer.Option(
        "--synthesise-gaps",
        metavar="RECIPE",
        help="Draw the tool times that a file does not record, by tool: "
        f"{', '.join(RECIPES)}, or a file of bench traces fit. Default: such files are rejected.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="FIELD=COLUMN,…",
        help="Column map of CSV and Parquet tables: program=session_id,start_ms=ts,"
        "prompt_tokens=in,output_tokens=out. Default: columns called after the fields.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Rows = Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Rows of each table.")]
Out = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="File to write, .jsonl or .jsonl.gz.")
]


def read_files(
    paths: Sequence[str],
    format: str | None,
    columns: str | None,
    tokenizer: Path | None,
    synthesise_gaps: str | None,
    *,
    messages: bool = False,
    json: bool = False,
) -> TraceSet:
    """Read traces. If no file can be read, print why each of several was rejected."""
    from traces.synthesis.gaps import gap_source

    gaps = None if synthesise_gaps is None else gap_source(synthesise_gaps)
    try:
        return read_traces(
            paths,
            messages=messages,
            format=format,
            columns=columns,
            tokenizer=tokenizer,
            gaps=gaps,
        )
    except NoTraceRead as error:
        notes = [Note(file, reason) for file, reason in error.rejections]
        if json:
            print_json({"programs": [], "rejections": [note_fields(note) for note in notes]})
        if len(notes) == 1:
            raise
        print_notes("rejected", notes)
        raise InvalidTrace(f"none of the {len(notes)} files can be read as a trace") from None


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
