"""`bench traces`: inspect, summarise, convert and synthesize traces.

Results go to stdout (tables or JSON), repairs and rejections to stderr.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.errors import one_line_errors
from reports.phrasing import counted
from servers.errors import InvalidTrace
from traces import RECIPES, Note, Program, TraceSet, read_traces, synthesize
from traces.cut import cut
from traces.formats.native import write_programs
from traces.lenient import one_line, printable
from traces.stats import statistics

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    help="Inspect, summarise and convert agent traces, or synthesize them.",
)

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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Rows = Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Rows of each table.")]
Out = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="File to write, .jsonl or .jsonl.gz.")
]
COUNT = re.compile(r"\d{1,9}", re.ASCII)
MAX_PRINTED_NOTES = 20
"""Limit of printed repairs and of printed rejections; --json prints all."""


class Tokens(StrEnum):
    FINAL_CONTEXT = "final-context"
    SUM = "sum"


INSPECT_HELP = """Print the formats, programs and repairs of a trace, and rejected files.

[bold]Examples[/bold]

  bench traces inspect swe-bench

  bench traces inspect ~/trajectories --rows 100

  bench traces inspect session.json --json | jq .repairs
"""


@app.command(help=INSPECT_HELP)
def inspect(paths: Paths, json: AsJson = False, rows: Rows = 20, format: Format = None) -> None:
    from harness.cli.trace_tables import show_programs

    with one_line_errors():
        loaded = read_traces(paths, format=format)
    if json:
        _print_json(_inspected(loaded))
        return
    sub_agents = sum(program.fork is not None for program in loaded.programs)
    formats = ", ".join(f"{n} {name}" for name, n in Counter(loaded.formats.values()).items())
    print(
        f"{counted(len(loaded.programs), 'program')} ({counted(sub_agents, 'sub-agent')}) from "
        f"{formats} file{'s' * (len(loaded.formats) != 1)}; "
        f"{counted(len(loaded.repairs), 'repair')}, {counted(len(loaded.rejections), 'rejection')}"
    )
    print(f"sha256 {loaded.sha256}")
    show_programs(loaded.programs[:rows])
    _print_more(len(loaded.programs) - rows, "programs")
    _print_notes("rejected", loaded.rejections)
    _print_notes("repaired", loaded.repairs)


STATS_HELP = """Print Table 2 and Figure 5 of the Continuum paper for any trace.

Table 2: turns, tool time and tokens per program, in both readings of "tokens per program".
Figure 5: the duration of each tool's calls, and the share of the total that the slowest 10% take.

[bold]Examples[/bold]

  bench traces stats swe-bench

  bench traces stats ~/trajectories --json
"""


@app.command(help=STATS_HELP)
def stats(paths: Paths, json: AsJson = False, rows: Rows = 20, format: Format = None) -> None:
    from harness.cli.trace_tables import show_statistics

    with one_line_errors():
        loaded = read_traces(paths, format=format)
    summary = statistics(loaded.programs)
    if json:
        _print_json(summary.as_json())
        return
    gaps = ", ".join(f"{count} {name}" for name, count in summary.gap_provenance.items()) or "none"
    print(f"{summary.programs} programs, {summary.sub_agents} of them sub-agents; gaps: {gaps}")
    show_statistics(summary, rows)
    _print_more(len(summary.tools) - rows, "tools")
    _print_notes("rejected", loaded.rejections)


CONVERT_HELP = """Convert any trace to Turnstile's own format, and optionally cut it.

[bold]Examples[/bold]

  bench traces convert ~/trajectories --out mine.jsonl.gz

  bench traces convert swe-bench --out small.jsonl --max-turns 8 --token-scale 0.1
"""


@app.command(help=CONVERT_HELP)
def convert(
    paths: Paths,
    out: Out,
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
    format: Format = None,
    messages: Annotated[
        bool,
        typer.Option("--messages", help="Keep messages, which --guided and --prompts text need."),
    ] = False,
) -> None:
    with one_line_errors():
        loaded = read_traces(paths, messages=messages, format=format)
        converted = cut(
            loaded.programs,
            jobs=programs,
            max_turns=max_turns,
            token_scale=token_scale,
            output_scale=output_scale,
            gap_scale=gap_scale,
        )
        _write(out, converted)
    _print_notes("rejected", loaded.rejections)
    print(
        f"{out}: {len(converted)} programs, {len(loaded.repairs)} repairs, "
        f"{len(loaded.rejections)} files rejected"
    )


SYNTHESIZE_HELP = """Synthesize programs from published means and deviations.

Every tool gap is marked as synthesised. The first example creates the pack that ships with
Turnstile, byte for byte.

[bold]Examples[/bold]

  bench traces synthesize swe-bench --programs 100 --seed 0 --out swe-bench.jsonl.gz

  bench traces synthesize bfcl --programs 1000 --scale 1 --out table2.jsonl.gz

  bench traces synthesize swe-bench --turn-scale 5 --out many-turns.jsonl.gz

  bench traces synthesize execution-note --output-tokens 7..150 --out note.jsonl
"""


@app.command(name="synthesize", help=SYNTHESIZE_HELP)
def synthesize_(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help=f"One of {', '.join(RECIPES)}.")],
    out: Out,
    programs: Annotated[
        int, typer.Option("--programs", metavar="N", min=1, help="Number of programs.")
    ] = 100,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="The same seed gives the same file.")
    ] = 0,
    turn_scale: Annotated[
        int,
        typer.Option(
            "--turn-scale",
            metavar="N",
            min=1,
            max=5,
            help="Multiply turns by this, divide lengths by it.",
        ),
    ] = 1,
    tokens: Annotated[
        Tokens, typer.Option("--tokens", help='Meaning of the recipe\'s "tokens per program".')
    ] = Tokens.FINAL_CONTEXT,
    scale: Annotated[
        float | None,
        typer.Option(
            "--scale", metavar="FACTOR", help="Multiply tokens by this. Default: the recipe's."
        ),
    ] = None,
    output_tokens: Annotated[
        str | None,
        typer.Option(
            "--output-tokens",
            metavar="MIN..MAX",
            help="Output lengths of execution-note. Default: 7..12.",
        ),
    ] = None,
) -> None:
    with one_line_errors():
        synthesized = synthesize(
            recipe,
            programs,
            seed,
            turn_scale=turn_scale,
            tokens=tokens.value,
            scale=scale,
            output_tokens=output_range(output_tokens),
        )
        _write(out, synthesized)
    turns = sum(len(program.turns) for program in synthesized)
    print(f"{out}: {len(synthesized)} programs, {turns} turns")


def output_range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, dots, high = text.partition("..")
    if not (dots and COUNT.fullmatch(low.strip()) and COUNT.fullmatch(high.strip())):
        raise InvalidTrace(f"--output-tokens {one_line(text)!r}: use MIN..MAX, e.g. 7..12")
    return int(low), int(high)


def _write(out: Path, programs: Sequence[Program]) -> None:
    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise InvalidTrace(f"--out {out}: must end in .jsonl or .jsonl.gz")
    write_programs(out, programs)


def _inspected(loaded: TraceSet) -> dict[str, Any]:
    from harness.cli.trace_tables import shared_prefix_tokens, tool_time_s

    return {
        "sha256": loaded.sha256,
        "formats": loaded.formats,
        "programs": [
            {
                "id": p.id,
                "turns": len(p.turns),
                "first_prompt_tokens": p.turns[0].prompt_tokens,
                "final_context_tokens": p.turns[-1].context_tokens,
                "peak_context_tokens": p.peak_context_tokens,
                "tool_gap_s": tool_time_s(p),
                "prefix_tokens": shared_prefix_tokens(p),
                "parent": p.fork.program_id if p.fork else None,
                "source": p.source,
            }
            for p in loaded.programs
        ],
        "repairs": [{"file": n.file, "reason": n.reason} for n in loaded.repairs],
        "rejections": [{"file": n.file, "reason": n.reason} for n in loaded.rejections],
    }


def _print_notes(kind: str, notes: Sequence[Note]) -> None:
    for note in notes[:MAX_PRINTED_NOTES]:
        print(f"{kind}: {printable(f'{note.file}: {note.reason}')}", file=sys.stderr)
    _print_more(len(notes) - MAX_PRINTED_NOTES, f"{kind} (see bench traces inspect --json)")


def _print_more(count: int, what: str) -> None:
    if count > 0:
        print(f"… and {count} more {what}", file=sys.stderr)


def _print_json(value: dict[str, Any]) -> None:
    import orjson

    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
