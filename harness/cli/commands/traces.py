"""`bench traces`: inspect traces; its other commands are in `traces_*`.

Results go to stdout (tables or JSON), repairs and rejections to stderr.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from harness.cli.commands import (
    traces_convert,
    traces_privacy,
    traces_recipes,
)
from harness.cli.options import CommandApp
from harness.cli.trace_options import (
    AsJson,
    Paths,
    TraceReading,
    note_fields,
    print_json,
    print_more,
    print_notes,
    read_files,
)
from harness.load.option import Option
from servers.basics.errors import InvalidInput
from servers.basics.phrasing import counted
from servers.basics.text import one_line
from traces import TraceSet
from traces.anonymize import Names
from traces.stats import statistics

app = CommandApp(
    no_args_is_help=True,
    help="Inspect, convert, synthesize and anonymize traces of agents.",
)


INSPECT_HELP = """Print the programs of a trace, their statistics, and the nearest recipe.

Prints formats, programs, repairs and rejected files; how often each conservation law held, such as
that prompts sum to the total in the file; turns, tokens and tool times per program; the duration of
each tool's calls, and the share of the total that the slowest 10% take; the fields of the files
that no reader uses; the means of recorded and published sets, and how far the programs are from
each.

Of histories of Claude Code, Codex and Gemini CLI it prints the ids of the sessions, with the
numbers that stand for them in runs and in files that are made from them, and all names of tools.
The page of --html names no file, no folder, no session and no command of them.

[bold]Examples[/bold]

  bench traces inspect swe-bench

  bench traces inspect ~/trajectories --rows 100

  bench traces inspect ~/.claude/projects --html workload.html

  bench traces inspect session.json --json | jq .repairs
"""


@app.command(help=INSPECT_HELP)
def inspect(
    paths: Paths,
    html: Annotated[
        Path | None,
        Option(
            "Write a page with figures instead of printing tables. It needs no network.", "FILE"
        ),
    ] = None,
    json: AsJson = False,
    rows: Annotated[int, Option("Rows of each table.", "N", min=1)] = 10,
    *,
    reading: TraceReading,
) -> None:
    from harness.cli.trace_tables import (
        gap_counts,
        law_counts,
        show_likenesses,
        show_programs,
        show_statistics,
        show_unread,
    )
    from traces.synthesis.nearest import nearest

    if html is not None:
        _write_page(paths, html, json, reading)
        return
    loaded = read_files(paths, reading, json=json, keep_names=True, watch=True)
    summary, likenesses = statistics(loaded.programs), nearest(loaded.programs)
    if json:
        recipes = [asdict(each) for each in likenesses]
        print_json({**_inspected(loaded), "statistics": summary.as_json(), "recipes": recipes})
        return
    formats = ", ".join(f"{n} {name}" for name, n in Counter(loaded.formats.values()).items())
    print(
        f"{counted(summary.programs, 'program')} ({counted(summary.sub_agents, 'sub-agent')}) from "
        f"{formats} file{'s' * (len(loaded.formats) != 1)}; "
        f"{counted(len(loaded.repairs), 'repair')}, {counted(len(loaded.rejections), 'rejection')}"
    )
    print(f"sha256 {loaded.sha256}")
    print(f"gaps: {gap_counts(summary.gap_provenance)}")
    if laws := law_counts(loaded.laws):
        print(f"laws: {laws}")
    numbers = Names().ids(loaded.programs) if loaded.is_private else {}
    show_programs(loaded.programs[:rows], numbers)
    print_more(len(loaded.programs) - rows, "programs")
    show_statistics(summary, rows)
    print_more(len(summary.tools) - rows, "tools")
    show_unread(loaded.unread, rows)
    show_likenesses(likenesses, loaded.programs, paths)
    print_notes("rejected", loaded.rejections)
    print_notes("repaired", loaded.repairs)


def _write_page(paths: list[str], html: Path, json: bool, reading: TraceReading) -> None:
    """Write the page and print its headline. Raises InvalidInput and what reading raises."""
    from harness.load.workload import workload_name
    from reports.workload.page import draw
    from reports.workload.phrases import headline

    if json:
        raise InvalidInput("--json: not supported with --html; remove one of them")
    if html.suffix != ".html":
        raise InvalidInput(f"--html {one_line(str(html))}: must end in .html")
    loaded = read_files(paths, reading)
    found = draw(loaded, workload_name(paths, loaded), html)
    print(headline(found))
    print(f"page: {html}")
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
        "laws": loaded.laws.as_json(),
        "unread_fields": dict(loaded.unread),
        "rejections": [note_fields(note) for note in loaded.rejections],
    }


for _name, _command, _help in (
    *traces_convert.COMMANDS,
    *traces_recipes.COMMANDS,
    *traces_privacy.COMMANDS,
):
    app.command(_name, help=_help)(_command)
