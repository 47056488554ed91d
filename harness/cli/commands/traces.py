"""`bench traces`: inspect and summarise traces; its other commands are in `traces_*`.

Results go to stdout (tables or JSON), repairs and rejections to stderr.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import typer

from harness.cli.commands import (
    traces_convert,
    traces_pack,
    traces_privacy,
    traces_recipes,
    traces_report,
)
from harness.cli.errors import one_line_errors
from harness.cli.options import takes_settings
from harness.cli.trace_options import (
    AsJson,
    Paths,
    Rows,
    TraceReading,
    note_fields,
    print_json,
    print_more,
    print_notes,
    read_files,
)
from servers.basics.phrasing import counted
from traces import TraceSet
from traces.anonymize import Names
from traces.stats import statistics

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    help="Inspect, summarise and convert agent traces, or synthesize them.",
)


INSPECT_HELP = """Print the formats, programs and repairs of a trace, and rejected files.

Of histories of Claude Code, Codex and Gemini CLI it prints the ids of the sessions, and the numbers
that stand for them in runs and in files that are made from them.

[bold]Examples[/bold]

  bench traces inspect swe-bench

  bench traces inspect ~/trajectories --rows 100

  bench traces inspect session.json --json | jq .repairs
"""


@app.command(help=INSPECT_HELP)
@takes_settings()
def inspect(
    paths: Paths,
    json: AsJson = False,
    rows: Rows = 20,
    *,
    reading: TraceReading,
) -> None:
    from harness.cli.trace_tables import gap_counts, show_programs

    with one_line_errors():
        loaded = read_files(paths, reading, json=json, keep_names=True)
    if json:
        print_json(_inspected(loaded))
        return
    sub_agents = sum(program.fork is not None for program in loaded.programs)
    formats = ", ".join(f"{n} {name}" for name, n in Counter(loaded.formats.values()).items())
    print(
        f"{counted(len(loaded.programs), 'program')} ({counted(sub_agents, 'sub-agent')}) from "
        f"{formats} file{'s' * (len(loaded.formats) != 1)}; "
        f"{counted(len(loaded.repairs), 'repair')}, {counted(len(loaded.rejections), 'rejection')}"
    )
    print(f"sha256 {loaded.sha256}")
    print(f"gaps: {gap_counts(statistics(loaded.programs).gap_provenance)}")
    numbers = Names().ids(loaded.programs) if loaded.is_private else {}
    show_programs(loaded.programs[:rows], numbers)
    print_more(len(loaded.programs) - rows, "programs")
    print_notes("rejected", loaded.rejections)
    print_notes("repaired", loaded.repairs)


STATS_HELP = """Print Table 2 and Figure 5 of the Continuum paper, and the nearest recipe.

Table 2: turns, tool time and tokens per program, in both readings of "tokens per program".
Figure 5: the duration of each tool's calls, and the share of the total that the slowest 10% take.
Recipes: the means of recorded and published sets, and how far the programs are from each.
All names of tools are printed, also those of a private history.

[bold]Examples[/bold]

  bench traces stats swe-bench

  bench traces stats ~/trajectories --json
"""


@app.command(help=STATS_HELP)
@takes_settings()
def stats(
    paths: Paths,
    json: AsJson = False,
    rows: Rows = 20,
    *,
    reading: TraceReading,
) -> None:
    from harness.cli.trace_tables import gap_counts, show_likenesses, show_statistics
    from traces.synthesis.nearest import nearest

    with one_line_errors():
        loaded = read_files(paths, reading, keep_names=True)
    summary = statistics(loaded.programs)
    likenesses = nearest(loaded.programs)
    if json:
        print_json({**summary.as_json(), "recipes": [asdict(each) for each in likenesses]})
        return
    counts = gap_counts(summary.gap_provenance)
    print(f"{summary.programs} programs, {summary.sub_agents} of them sub-agents; gaps: {counts}")
    show_statistics(summary, rows)
    print_more(len(summary.tools) - rows, "tools")
    show_likenesses(likenesses, loaded.programs)
    print_notes("rejected", loaded.rejections)


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
        "repairs": [note_fields(note) for note in loaded.repairs],
        "rejections": [note_fields(note) for note in loaded.rejections],
    }


for _name, _command, _help in (
    *traces_convert.COMMANDS,
    *traces_report.COMMANDS,
    *traces_recipes.COMMANDS,
    *traces_pack.COMMANDS,
    *traces_privacy.COMMANDS,
):
    app.command(_name, help=_help)(_command)
