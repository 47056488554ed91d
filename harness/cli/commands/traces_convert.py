"""`bench traces convert`: write traces in Turnstile's own format, or in that of another tool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.options import takes_settings
from harness.cli.trace_options import Paths, TraceReading, print_notes, read_files
from servers.basics.errors import InvalidInput
from servers.basics.phrasing import counted
from servers.basics.text import printable
from traces.cut import cut
from traces.exports.files import check_export, write_export
from traces.exports.registry import EXPORTS, NATIVE
from traces.files import check_not_read

CONVERT_HELP = """Convert traces to Turnstile's format or another tool's, also cut to size.

[bold]Formats of --to[/bold]

  native            Turnstile: everything

  mooncake          Mooncake, Dynamo, AIPerf: requests with fixed starts

  agentic-mooncake  Dynamo: gaps, sub-agents and joins

  aiperf-dag        AIPerf: gaps, spawned conversations and joins

  weka              kv-cache-tester, AIPerf, Dynamo: a folder, a file per job

  otel              OpenTelemetry: spans of agents, model calls and tools

None but native has texts or commands of the recording. What a format cannot express, and what is
assumed instead, is printed in lines that begin with "differs:".

[bold]Examples[/bold]

  bench traces convert ~/trajectories --out mine.jsonl.gz

  bench traces convert ~/trajectories --to agentic-mooncake --out dynamo.jsonl

  bench traces convert swe-bench --to weka --programs 10 --out sessions

  bench traces convert swe-bench --out few.jsonl --max-turns 8

  bench traces convert result.json --synthesise-gaps bfcl --out mine.jsonl.gz
"""


def _complete_export(incomplete: str) -> list[str]:
    return [name for name in EXPORTS if name.startswith(incomplete)]


@takes_settings()
def convert(
    paths: Paths,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE", help="File to write, .jsonl or .jsonl.gz; for weka, a folder."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NAME",
            autocompletion=_complete_export,
            help="Format to write: " + ", ".join(EXPORTS) + ".",
        ),
    ] = NATIVE,
    programs: Annotated[
        int | None,
        typer.Option("--programs", metavar="N", min=1, help="Keep the first N jobs. Default: all."),
    ] = None,
    max_turns: Annotated[
        int | None,
        typer.Option(
            "--max-turns", metavar="N", min=1, help="Keep the first N turns. Default: all."
        ),
    ] = None,
    token_scale: Annotated[
        float,
        typer.Option("--token-scale", metavar="FACTOR", min=0, help="Multiply lengths by this."),
    ] = 1.0,
    output_scale: Annotated[
        float | None,
        typer.Option(
            "--output-scale",
            metavar="FACTOR",
            min=0,
            help="Multiply outputs by this. Default: --token-scale.",
        ),
    ] = None,
    gap_scale: Annotated[
        float,
        typer.Option(
            "--gap-scale",
            metavar="FACTOR",
            min=0,
            help="Multiply tool gaps by this, and mark them as synthesised.",
        ),
    ] = 1.0,
    messages: Annotated[
        bool,
        typer.Option("--messages", help="Keep messages, which --guided and --prompts text need."),
    ] = False,
    *,
    reading: TraceReading,
) -> None:
    with one_line_errors():
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
        f"{out}: {len(converted)} programs, {counted(turns, 'turn')}, "
        f"{len(loaded.repairs)} repairs, {len(loaded.rejections)} files rejected"
    )


COMMANDS = (("convert", convert, CONVERT_HELP),)
