"""Tables of programs, moments and tools for `bench traces`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from harness.cli.trace_options import print_more
from servers.basics.text import printable
from traces import Program
from traces.laws import Law, Laws
from traces.stats import GapStats, Spread, Statistics
from traces.synthesis.figures import Distance, figures, value_of
from traces.synthesis.nearest import LIKE, QUANTITIES, Likeness, means

PIPE_COLUMNS = 200
"""Width of tables in a pipe, in which no line may be folded."""
MAX_TOOL_CHARACTERS = 40
MAX_ID_CHARACTERS = 80
"""Of a program; --json has it in full."""
KEPT = "kept share of prompts"
"""Counts for the distance, but is not printed, since the statistics have the kept share."""


def show_programs(programs: Sequence[Program], numbers: Mapping[str, str]) -> None:
    """`numbers`: what replaces the ids of private histories in runs; empty for other traces."""
    heads = ("program", "turns", "first prompt", "final context", "tool time s", "prefix", "")
    table = _table(*heads, *(["in runs"] if numbers else []))
    for program in programs:
        table.add_row(*_program_row(program), *([numbers[program.id]] if numbers else []))
    _show(table)


def gap_counts(by_provenance: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in by_provenance.items()) or "none"


def law_counts(laws: Laws) -> str:
    """Return how often each law held, of the times that it was checked; "" if none was."""
    counts = ((law, laws.checked[law], laws.failed[law]) for law in Law)
    return ", ".join(f"{law} {n - failed:,} of {n:,}" for law, n, failed in counts if n)


def show_unread(unread: Mapping[str, int], rows: int) -> None:
    """Print the fields that no reader uses, the most frequent first."""
    if not unread:
        return
    table = _table("field that is not read", "times")
    ordered = sorted(unread.items(), key=lambda each: (-each[1], each[0]))
    for name, times in ordered[:rows]:
        table.add_row(printable(name), f"{times:,}")
    _show(table)
    print_more(len(unread) - rows, "fields that are not read")


def show_statistics(stats: Statistics, max_tools: int) -> None:
    """Print the moments of a trace, and its tools with the most total time."""
    _show(_moments_table(stats))
    table = _table("tool", "calls", "mean s", "P50 s", "P90 s", "P99 s", "share of slowest 10%")
    for tool in [stats.all_tools, *stats.tools[:max_tools]]:
        table.add_row(*_tool_row(tool))
    _show(table)


STATISTICS = ("mean", "sd", "p50", "p90", "p95", "p99")


def show_distances(distances: Sequence[Distance]) -> None:
    """Print the real values of each quantity, with the relative errors of the drawn ones."""
    table = _table("", "real values", *STATISTICS, "KS")
    for distance in distances:
        cells = (_with_error(distance, statistic) for statistic in STATISTICS)
        table.add_row(distance.quantity, f"{distance.real.count:,}", *cells, f"{distance.ks:.3f}")
    _show(table)


def show_likenesses(
    likenesses: Sequence[Likeness], programs: Sequence[Program], paths: Sequence[str]
) -> None:
    """Print the means of the programs in `paths` beside the recipes', the nearest first."""
    if not likenesses:
        return
    shown = [name for name in QUANTITIES if name != KEPT]
    table = _table("", "distance", *shown)
    own = means(figures(programs))
    have_sub_agents = any(program.fork is not None for program in programs)
    these = "these jobs, without sub-agents" if have_sub_agents else "these programs"
    rows = [(these, None, own), *((x.recipe, x.distance, x.means) for x in likenesses)]
    for name, distance, values in rows:
        cells = (_number(values[key]) if key in values else "" for key in shown)
        table.add_row(name, "" if distance is None else f"{distance:.2f}", *cells)
    _show(table)
    first = likenesses[0]
    if first.distance <= LIKE:
        print(
            f"\nThe nearest recipe is {first.recipe}; compare it in detail with: "
            f"bench traces fit --check {first.recipe} {shlex.join(paths)}"
        )
    else:
        print("\nNo recipe is like these programs; bench traces fit makes one that is.")


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _with_error(distance: Distance, statistic: str) -> str:
    real, error = value_of(distance.real, statistic), distance.relative_error(statistic)
    value = _number(real)
    return value if error is None else f"{value} ({round(error, 2) + 0.0:+.0%})"


def tool_time_s(program: Program) -> float:
    return round(sum(turn.tool_gap_s for turn in program.turns[:-1]), 3)


def shared_prefix_tokens(program: Program) -> int:
    """Return how many tokens the first prompt shares with other prompts of the trace."""
    if program.prefix is not None:
        return program.prefix.tokens
    path = program.turns[0].prefixes
    return path[-1].tokens if path else 0


def _program_row(program: Program) -> tuple[str, ...]:
    first, last = program.turns[0], program.turns[-1]
    return (
        _short(program.id, MAX_ID_CHARACTERS),
        str(len(program.turns)),
        f"{first.prompt_tokens:,}",
        f"{last.context_tokens:,}",
        f"{tool_time_s(program):,.1f}",
        f"{tokens:,}" if (tokens := shared_prefix_tokens(program)) else "",
        f"sub-agent of {_short(program.fork.program_id, MAX_ID_CHARACTERS)}"
        if program.fork
        else "",
    )


def _short(name: str, characters: int) -> str:
    return printable(name if len(name) <= characters else f"{name[: characters - 1]}…")


def _moments_table(stats: Statistics) -> Table:
    table = _table("", "count", "mean", "deviation")
    lines: list[tuple[str, Spread, float, int]] = [
        ("turns per program", stats.turns, 1, 1),
        ("tool time, ms", stats.tool_gap_s, 1000, 0),
        ("tokens per program, final context", stats.final_context_tokens, 1, 0),
        ("tokens per program, sum over turns", stats.summed_tokens, 1, 0),
        ("prompt tokens per turn", stats.prompt_tokens, 1, 0),
        ("output tokens per turn", stats.output_tokens, 1, 0),
        ("pause without a tool, ms", stats.pause_s, 1000, 0),
    ]
    for name, moments, unit, digits in lines:
        mean, sd = moments.mean * unit, moments.sd * unit
        table.add_row(name, f"{moments.count:,}", f"{mean:,.{digits}f}", f"{sd:,.{digits}f}")
    table.add_row("prompt tokens kept from the previous turn", "", f"{stats.kept_share:.1%}", "")
    if stats.burstiness is not None:
        table.add_row("burstiness of starts (0: Poisson)", "", f"{stats.burstiness:.2f}", "")
    return table


def _tool_row(tool: GapStats) -> tuple[str, ...]:
    seconds = (tool.mean_s, tool.p50_s, tool.p90_s, tool.p99_s)
    return (
        _short(tool.tool, MAX_TOOL_CHARACTERS),
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


def _show(table: Table) -> None:
    terminal = sys.stdout.isatty()
    console = Console(markup=False, highlight=False, width=None if terminal else PIPE_COLUMNS)
    print()
    console.print(table)
