"""`bench traces report`: a page about what a workload is like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.options import takes_settings
from harness.cli.trace_options import (
    Paths,
    TraceReading,
    print_notes,
    read_files,
)
from servers.basics.errors import InvalidInput
from servers.basics.text import one_line

REPORT_HELP = """Draw a page about what a workload is like, beside the recipes.

It shows turns, prompts, outputs, tool times with their tails, what a cache could hold, sub-agents
and starts, and the nearest recipe. It is one file that needs no network. Its title is the name of
the given file or folder, without the folder that contains it. Of the histories of command-line
agents it names no file, no folder and no command.

[bold]Examples[/bold]

  bench traces report ~/trajectories --out workload.html

  bench traces report ~/.claude/projects --out mine.html
"""


@takes_settings()
def report(
    paths: Paths,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page, .html.")],
    *,
    reading: TraceReading,
) -> None:
    from harness.load.workload import workload_name
    from reports.workload.page import draw
    from reports.workload.phrases import headline

    with one_line_errors():
        if out.suffix != ".html":
            raise InvalidInput(f"--out {one_line(str(out))}: must end in .html")
        loaded = read_files(paths, reading)
        found = draw(loaded, workload_name(paths, loaded), out)
    print(headline(found))
    print(f"page: {out}")
    print_notes("rejected", loaded.rejections)


COMMANDS = (("report", report, REPORT_HELP),)
