"""`bench traces convert`: write traces in Turnstile's own format, or in another tool's."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import refuse_given
from harness.cli.trace_options import (
    Paths,
    TraceReading,
    print_notes,
    print_unused_recipe,
    read_files,
)
from harness.load.option import Option
from servers.basics.errors import InvalidInput, InvalidTrace
from servers.basics.phrasing import counted
from servers.basics.text import one_line, printable
from traces.cut import cut
from traces.exports.registry import EXPORTS, NATIVE, PACKED, check_export, write_export
from traces.files import check_not_read

if TYPE_CHECKING:
    from traces.streaming import Progress

CONVERT_HELP = """Convert traces to Turnstile's format or another tool's, also cut to size.

[bold]Formats of --to[/bold]

  native            Turnstile: everything

  mooncake          Mooncake, Dynamo, AIPerf: requests with fixed starts

  agentic-mooncake  Dynamo: gaps, sub-agents and joins

  aiperf-dag        AIPerf: gaps, spawned conversations and joins

  weka              kv-cache-tester, AIPerf, Dynamo: a folder, a file per job

  otel              OpenTelemetry: spans of agents, model calls and tools

  packed            Turnstile: sets larger than memory, which load in seconds

None but native has texts or commands of the recording. What a format cannot express, and what is
assumed instead, is printed in lines that begin with "differs:".

With --to packed, files are read once, one after the other. Files of GitHub Copilot's sessions and
of TraceLab's rounds, with the lines of a session together, may be larger than memory: they are read
in parts. Commands, messages and what prompts share turn by turn are not stored.

[bold]Examples[/bold]

  bench traces convert ~/trajectories --out mine.jsonl.gz

  bench traces convert ~/trajectories --to agentic-mooncake --out dynamo.jsonl

  bench traces convert swe-bench --to weka --programs 10 --out sessions

  bench traces convert swe-bench --out few.jsonl --max-turns 8

  bench traces convert result.json --synthesise-gaps bfcl --out mine.jsonl.gz

  bench traces convert sessions.jsonl.gz --to packed --out copilot.packed
"""
CUTS = ("programs", "max_turns", "token_scale", "output_scale", "gap_scale", "messages")
"""Options that `--to packed` does not support."""


def _complete_export(incomplete: str) -> list[str]:
    return [name for name in (*EXPORTS, PACKED) if name.startswith(incomplete)]


def convert(
    context: typer.Context,
    paths: Paths,
    out: Annotated[
        Path,
        Option(
            "File to write, .jsonl or .jsonl.gz; for packed, .packed; for weka, a folder.", "FILE"
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NAME",
            autocompletion=_complete_export,
            help="Format to write: " + ", ".join((*EXPORTS, PACKED)) + ".",
        ),
    ] = NATIVE,
    programs: Annotated[
        int | None, Option("Keep the first N jobs. Default: all.", "N", min=1)
    ] = None,
    max_turns: Annotated[
        int | None, Option("Keep the first N turns. Default: all.", "N", min=1)
    ] = None,
    token_scale: Annotated[float, Option("Multiply lengths by this.", "FACTOR", min=0)] = 1.0,
    output_scale: Annotated[
        float | None, Option("Multiply outputs by this. Default: --token-scale.", "FACTOR", min=0)
    ] = None,
    gap_scale: Annotated[
        float, Option("Multiply tool gaps by this, and mark them as synthesised.", "FACTOR", min=0)
    ] = 1.0,
    messages: Annotated[
        bool, Option("Keep messages, which --guided and --prompts text need.")
    ] = False,
    *,
    reading: TraceReading,
) -> None:
    if to == PACKED:
        refuse_given(context, CUTS, "not supported with --to packed")
        _pack(paths, out, reading)
        return
    check_export(to, out)
    check_not_read(out, paths)
    if messages and to != NATIVE:
        raise InvalidInput(f"--messages: --to {to} has no texts; remove --messages")
    loaded = read_files(paths, reading, messages=messages)
    converted = cut(
        loaded.programs,
        jobs=programs,
        max_turns=max_turns,
        token_scale=token_scale,
        output_scale=output_scale,
        gap_scale=gap_scale,
    )
    losses = write_export(to, out, converted)
    print_notes("rejected", loaded.rejections)
    for loss in losses:
        print(f"differs: {printable(loss)}", file=sys.stderr)
    turns = sum(len(program.turns) for program in converted)
    print(
        f"{out}: {counted(len(converted), 'program')}, {counted(turns, 'turn')}, "
        f"{counted(len(loaded.repairs), 'repair')}, "
        f"{counted(len(loaded.rejections), 'file')} rejected"
    )


def _pack(paths: list[str], out: Path, reading: TraceReading) -> None:
    from traces.stored import SUFFIX
    from traces.streaming import store

    if out.suffix != SUFFIX:
        raise InvalidTrace(f"--out {one_line(str(out))}: must end in {SUFFIX}")
    check_not_read(out, paths)
    stored = store(paths, out, _print_progress, format=reading.format, **asdict(reading.reading))
    print_unused_recipe(reading, [note.reason for note in stored.repairs])
    print_notes("repaired", stored.repairs)
    print_notes("rejected", stored.rejections)
    for loss in stored.losses.reasons():
        print(f"differs: {printable(loss)}", file=sys.stderr)
    print(
        f"{out}: {counted(stored.programs, 'program')}, {counted(stored.turns, 'turn')}, "
        f"{counted(len(stored.repairs), 'repair')}, "
        f"{counted(len(stored.rejections), 'file')} rejected"
    )


def _print_progress(progress: Progress) -> None:
    print(
        f"{progress.read_bytes / max(progress.all_bytes, 1):.0%}, {progress.programs:,} programs, "
        f"{progress.remaining_s:,.0f} s left",
        file=sys.stderr,
    )


COMMANDS = (("convert", convert, CONVERT_HELP),)
