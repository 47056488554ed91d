"""`bench traces pack`: store sets of traces that are larger than memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.errors import one_line_errors
from servers.errors import InvalidTrace
from traces.lenient import one_line
from traces.stored import SUFFIX
from traces.streaming import Progress, store

PACK_HELP = """Store a set of traces that is larger than memory, as a file that loads in seconds.

The files are JSON Lines of GitHub Copilot's sessions or of TraceLab's rounds, plain or gzipped,
with the lines of a session together. They are read once, in parts.

[bold]Examples[/bold]

  bench traces pack sessions.jsonl.gz --out copilot.packed

  bench sweep --traces copilot.packed --programs 1000
"""


def pack(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="JSON Lines files.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help=f"File to write, {SUFFIX}.")],
) -> None:
    with one_line_errors():
        if out.suffix != SUFFIX:
            raise InvalidTrace(f"--out {one_line(str(out))}: must end in {SUFFIX}")
        stored = store(paths, out, _print_progress)
    for reason in stored.repairs.reasons():
        print(f"repaired: {one_line(reason)}", file=sys.stderr)
    print(f"{out}: {stored.programs:,} programs, {stored.turns:,} turns")


def _print_progress(progress: Progress) -> None:
    print(
        f"{progress.read_bytes / max(progress.all_bytes, 1):.0%}, {progress.programs:,} programs, "
        f"{progress.remaining_s:,.0f} s left",
        file=sys.stderr,
    )


COMMANDS = (("pack", pack, PACK_HELP),)
