"""`bench traces anonymize`: make a trace that can be shared, and check that it can."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import AllBut, refuse_given
from harness.cli.trace_options import (
    Paths,
    TraceReading,
    print_json,
    read_files,
    write_trace,
)
from harness.load.option import Option
from servers.basics.errors import InvalidTrace
from servers.basics.phrasing import counted
from servers.basics.text import one_line
from traces import Program, read_traces
from traces.anonymize import anonymized, findings
from traces.files import check_not_read

ANONYMIZE_HELP = """Write a trace without texts, commands, paths and names, which can be shared.

It keeps lengths, tool times and their provenance, well-known tool names, sub-agents, and what
prompts share. Other tools are numbered, as are programs. Schedulers serve it like the original.

With --check nothing is written: it prints what a file contains that could name a person, a project
or a file, and the exit code is 1 if there is anything of the kind. Files of other formats than
Turnstile's contain what their program has recorded, such as texts and commands, and are not
searched.

[bold]Examples[/bold]

  bench traces anonymize ~/.claude/projects --out shared.jsonl.gz

  bench traces anonymize runs/record/NAME/trace.jsonl --out shared.jsonl

  bench traces anonymize --check shared.jsonl.gz
"""


def anonymize(
    context: typer.Context,
    paths: Paths,
    out: Annotated[Path | None, Option("File to write, .jsonl or .jsonl.gz.", "FILE")] = None,
    check: Annotated[bool, Option("Search a file for what may identify someone.")] = False,
    json: Annotated[bool, Option("With --check: print JSON.")] = False,
    *,
    reading: TraceReading,
) -> None:
    if check:
        refuse_given(context, AllBut("paths", "check", "json"), "not supported with --check")
        if len(paths) > 1:
            raise InvalidTrace("--check: give one file, the one that is to be shared")
        _check(Path(paths[0]), json)
        return
    refuse_given(context, ("json",), "only with --check")
    if out is None:
        raise InvalidTrace("give --out FILE, or --check to search a file that is to be shared")
    check_not_read(out, paths)
    loaded = read_files(paths, reading)
    write_trace(out, anonymized(loaded.programs))
    print(
        f"{out}: {counted(len(loaded.programs), 'program')}, "
        f"{counted(len(loaded.rejections), 'file')} rejected"
    )


def _check(path: Path, json: bool) -> None:
    """Print what the file contains. Exit with code 1 if it may identify someone."""
    name = one_line(path.name)
    format, programs = _contents(path, name)
    found = None if programs is None else [f for f in findings(programs) if f.number]
    shareable = found is not None and not any(finding.identifies for finding in found)
    if json:
        contents = [finding._asdict() for finding in found or ()]
        print_json({"format": format, "shareable": shareable, "contents": contents})
    elif found is None:
        print(f"{name}: format {format}, whose files may contain texts, commands and paths")
    else:
        for finding in found:
            mark = "  may identify" if finding.identifies else ""
            print(f"{finding.number:>8,}  {finding.content}{mark}")
    if not json and shareable:
        print(f"{name}: contains lengths, times and well-known names only")
    elif not json:
        print(f"bench traces anonymize {name} --out FILE writes what can be shared")
    if not shareable:
        raise typer.Exit(1)


def _contents(path: Path, name: str) -> tuple[str, Sequence[Program] | None]:
    """Return the file's format, and its programs if it has nothing else. Raise InvalidTrace."""
    from traces.formats.native import parse_programs
    from traces.formats.registry import recognise
    from traces.lenient import read_bytes
    from traces.read import NATIVE_FORMAT
    from traces.stored import SUFFIX

    if path.is_dir():
        raise InvalidTrace(f"{name}: is a folder; give the file that is to be shared")
    if path.suffix == SUFFIX:
        return SUFFIX.removeprefix("."), read_traces(path).programs
    data = read_bytes(path)
    known = recognise(data)
    if known is None:
        raise InvalidTrace(f"{name}: not a trace; bench traces inspect says why")
    is_native = known[0] == NATIVE_FORMAT
    return known[0], parse_programs(data, name) if is_native else None


COMMANDS = (("anonymize", anonymize, ANONYMIZE_HELP),)
"""Names, functions and help of the commands."""
