"""`bench traces`: look at traces, measure them, convert them, make them.

Results go to stdout (tables on a terminal and off it, or JSON), what was repaired or refused to
stderr. Exit code 2 and one line where a trace cannot be used.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from traces import RECIPES, Loaded, Program, TraceError, read_traces, synthesize
from traces.cut import cut
from traces.native import write_programs
from traces.stats import Moments, Statistics, ToolGaps, statistics

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at agent traces, measure them, convert them, or make them to published statistics.",
)

Paths = Annotated[list[str], typer.Argument(help="Files, folders, or packs such as swe-bench.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Rows = Annotated[int, typer.Option(min=1, help="Rows of each table.")]
Out = Annotated[Path, typer.Option(help="File to write, .jsonl or .jsonl.gz.")]
TOLD = 20
"""So many repairs and rejections are printed; all of them with --json."""


@contextmanager
def _one_line_errors() -> Any:
    try:
        yield
    except TraceError as error:
        typer.echo(f"bench traces: {error}", err=True)
        raise typer.Exit(2) from None


@app.command()
def inspect(paths: Paths, json: AsJson = False, rows: Rows = 20) -> None:
    """What a trace holds: formats, programs, what was repaired, what was refused and why.

    \b
    bench traces inspect swe-bench
    bench traces inspect ~/trajectories --rows 100
    bench traces inspect session.json --json | jq .repairs
    """
    with _one_line_errors():
        loaded = read_traces(paths)
    if json:
        _print_json(_inspected(loaded))
        return
    sub_agents = sum(program.fork is not None for program in loaded.programs)
    formats = ", ".join(f"{n} {name}" for name, n in Counter(loaded.formats.values()).items())
    typer.echo(
        f"{len(loaded.programs)} programs ({sub_agents} sub-agents) from {formats} files; "
        f"{len(loaded.repairs)} repairs, {len(loaded.rejections)} rejections"
    )
    typer.echo(f"sha256 {loaded.sha256}")
    table = _table("program", "turns", "first prompt", "final context", "tool time s", "prefix", "")
    for program in loaded.programs[:rows]:
        table.add_row(*_program_row(program))
    _print_table(table)
    _tell_more(len(loaded.programs) - rows, "programs")
    for kind, notes in (("rejected", loaded.rejections), ("repaired", loaded.repairs)):
        for note in notes[:TOLD]:
            typer.echo(f"{kind}: {note.file}: {note.reason}", err=True)
        _tell_more(len(notes) - TOLD, f"{kind} (see --json)")


@app.command()
def stats(paths: Paths, json: AsJson = False, rows: Rows = 20) -> None:
    """Table 2 and Figure 5 of the Continuum paper, for any trace.

    Turns, tool time and tokens per program, in both readings of "tokens per program"; then, for
    each tool, how long its calls take and how much of the total the slowest 10% hold.

    \b
    bench traces stats swe-bench
    bench traces stats ~/trajectories --json
    """
    with _one_line_errors():
        loaded = read_traces(paths)
    found = statistics(loaded.programs)
    if json:
        _print_json(found.as_json())
        return
    gaps = ", ".join(f"{count} {name}" for name, count in found.gap_provenance.items()) or "none"
    typer.echo(f"{found.programs} programs, {found.sub_agents} of them sub-agents; gaps: {gaps}")
    _print_table(_moments_table(found))
    table = _table("tool", "calls", "mean s", "P50 s", "P90 s", "P99 s", "slowest 10% hold")
    for tool in [found.all_tools, *found.tools[:rows]]:
        table.add_row(*_tool_row(tool))
    _print_table(table)
    _tell_more(len(found.tools) - rows, "tools")
    for note in loaded.rejections[:TOLD]:
        typer.echo(f"rejected: {note.file}: {note.reason}", err=True)


@app.command()
def convert(
    paths: Paths,
    out: Out,
    programs: Annotated[int | None, typer.Option(min=1, help="The first so many jobs.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="The first turns of each.")] = None,
    token_scale: Annotated[float, typer.Option(min=0, help="Lengths times this.")] = 1.0,
    output_scale: Annotated[
        float | None, typer.Option(min=0, help="Outputs times this; as --token-scale if left out.")
    ] = None,
    gap_scale: Annotated[
        float, typer.Option(min=0, help="Tool gaps times this; they count as synthesised then.")
    ] = 1.0,
    messages: Annotated[
        bool,
        typer.Option("--messages", help="Keep what was said, for --guided and --prompts text."),
    ] = False,
) -> None:
    """Write any trace as Turnstile's own format, one program a line; cut to size if asked.

    \b
    bench traces convert ~/trajectories --out mine.jsonl.gz
    bench traces convert swe-bench --out small.jsonl --max-turns 8 --token-scale 0.1
    """
    with _one_line_errors():
        loaded = read_traces(paths, messages=messages)
        kept = cut(
            loaded.programs,
            jobs=programs,
            max_turns=max_turns,
            token_scale=token_scale,
            output_scale=output_scale,
            gap_scale=gap_scale,
        )
        _write(out, kept)
    for note in loaded.rejections[:TOLD]:
        typer.echo(f"rejected: {note.file}: {note.reason}", err=True)
    typer.echo(
        f"{out}: {len(kept)} programs, {len(loaded.repairs)} repairs, "
        f"{len(loaded.rejections)} files rejected"
    )


@app.command(name="synthesize")
def synthesize_(
    recipe: Annotated[str, typer.Argument(help=f"One of {', '.join(RECIPES)}.")],
    out: Out,
    programs: Annotated[int, typer.Option(help="How many.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same file.")] = 0,
    turn_scale: Annotated[int, typer.Option(help="Turns times 1 to 5, lengths divided.")] = 1,
    tokens: Annotated[
        str, typer.Option(help="Tokens per program are final-context, or sum over turns.")
    ] = "final-context",
    scale: Annotated[
        float | None, typer.Option(help="Tokens times this, in place of the recipe's factor.")
    ] = None,
    output_tokens: Annotated[
        str | None, typer.Option(help="Least..most of execution-note, e.g. 7..12.")
    ] = None,
) -> None:
    """Make programs to published means and deviations; every tool gap is marked as synthesised.

    \b
    bench traces synthesize swe-bench --programs 100 --seed 0 --out swe-bench.jsonl.gz
    bench traces synthesize bfcl --programs 1000 --scale 1 --out table2.jsonl.gz
    bench traces synthesize swe-bench --turn-scale 5 --out many-turns.jsonl.gz
    bench traces synthesize execution-note --output-tokens 7..150 --out note.jsonl

    The first line makes the pack that ships with Turnstile, byte for byte.
    """
    with _one_line_errors():
        made = synthesize(
            recipe,
            programs,
            seed,
            turn_scale=turn_scale,
            tokens=_reading(tokens),
            scale=scale,
            output_tokens=_range(output_tokens),
        )
        _write(out, made)
    typer.echo(f"{out}: {len(made)} programs, {sum(len(p.turns) for p in made)} turns")


def _reading(tokens: str) -> Any:
    return tokens  # `synthesize` refuses what it does not know.


def _range(said: str | None) -> tuple[int, int] | None:
    if said is None:
        return None
    least, dots, most = said.partition("..")
    if not (dots and least.strip().isdecimal() and most.strip().isdecimal()):
        raise TraceError(f"--output-tokens {said!r}: write least..most, e.g. 7..12")
    return int(least), int(most)


def _write(out: Path, programs: Any) -> None:
    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise TraceError(f"--out {out}: must end in .jsonl or .jsonl.gz")
    write_programs(out, programs)


def _inspected(loaded: Loaded) -> dict[str, Any]:
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
                "tool_gap_s": _tool_gap_s(p),
                "prefix_tokens": p.prefix.tokens if p.prefix else 0,
                "parent": p.fork.program_id if p.fork else None,
                "source": p.source,
            }
            for p in loaded.programs
        ],
        "repairs": [{"file": n.file, "reason": n.reason} for n in loaded.repairs],
        "rejections": [{"file": n.file, "reason": n.reason} for n in loaded.rejections],
    }


def _tool_gap_s(program: Program) -> float:
    return round(sum(turn.tool_gap_s for turn in program.turns[:-1]), 3)


def _program_row(program: Program) -> tuple[str, ...]:
    first, last = program.turns[0], program.turns[-1]
    return (
        program.id,
        str(len(program.turns)),
        f"{first.prompt_tokens:,}",
        f"{last.context_tokens:,}",
        f"{_tool_gap_s(program):,.1f}",
        f"{program.prefix.tokens:,}" if program.prefix else "",
        f"sub-agent of {program.fork.program_id}" if program.fork else "",
    )


def _moments_table(found: Statistics) -> Table:
    table = _table("", "count", "mean", "deviation")
    lines: list[tuple[str, Moments, float, int]] = [
        ("turns per program", found.turns, 1, 1),
        ("tool time, ms", found.tool_gap_s, 1000, 0),
        ("tokens per program, final context", found.final_context_tokens, 1, 0),
        ("tokens per program, sum over turns", found.summed_tokens, 1, 0),
        ("prompt tokens per turn", found.prompt_tokens, 1, 0),
        ("output tokens per turn", found.output_tokens, 1, 0),
        ("pause without a tool, ms", found.pause_s, 1000, 0),
    ]
    for name, moments, unit, digits in lines:
        mean, sd = moments.mean * unit, moments.sd * unit
        table.add_row(name, f"{moments.count:,}", f"{mean:,.{digits}f}", f"{sd:,.{digits}f}")
    table.add_row("prompt tokens kept from the turn before", "", f"{found.kept_share:.1%}", "")
    return table


def _tool_row(tool: ToolGaps) -> tuple[str, ...]:
    seconds = (tool.mean_s, tool.p50_s, tool.p90_s, tool.p99_s)
    return (
        tool.tool if len(tool.tool) <= 40 else tool.tool[:39] + "…",
        f"{tool.calls:,}",
        *(f"{s:,.3f}" for s in seconds),
        f"{tool.slowest_tenth_share:.1%}",
    )


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right" if name else "left", overflow="fold")
    return table


def _print_table(table: Table) -> None:
    terminal = sys.stdout.isatty()
    # Off a terminal there is no width to fit into: lines stay whole.
    console = Console(markup=False, highlight=False, width=None if terminal else 200)
    typer.echo()
    console.print(table)


def _tell_more(count: int, what: str) -> None:
    if count > 0:
        typer.echo(f"… and {count} more {what}", err=True)


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
