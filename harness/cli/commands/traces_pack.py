"""`bench traces pack`: store sets of traces that are larger than memory."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.options import takes_settings
from harness.cli.trace_options import (
    Paths,
    TraceReading,
    print_notes,
    print_unused_recipe,
)
from servers.basics.errors import InvalidTrace
from servers.basics.text import one_line, printable
from traces.files import check_not_read
from traces.stored import SUFFIX
from traces.streaming import Progress, store

PACK_HELP = """Store a set of traces that is larger than memory, as a file that loads in seconds.

Files of any format are read once, one after the other. Those of GitHub Copilot's sessions and of
TraceLab's rounds, with the lines of a session together, may be larger than memory: they are read in
parts. Commands, messages and what prompts share turn by turn are not stored; a line that begins
with "differs:" counts the turns that share something.

[bold]Examples[/bold]

  bench traces pack sessions.jsonl.gz --out copilot.packed

  bench traces pack ~/trajectories --out mine.packed

  bench sweep --traces copilot.packed --programs 1000
"""


@takes_settings()
def pack(
    paths: Paths,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help=f"File to write, {SUFFIX}.")],
    *,
    reading: TraceReading,
) -> None:
    with one_line_errors():
        if out.suffix != SUFFIX:
            raise InvalidTrace(f"--out {one_line(str(out))}: must end in {SUFFIX}")
        check_not_read(out, paths)
        stored = store(
            paths, out, _print_progress, format=reading.format, **asdict(reading.reading)
        )
    print_unused_recipe(reading, [note.reason for note in stored.repairs])
    print_notes("repaired", stored.repairs)
    print_notes("rejected", stored.rejections)
    for loss in stored.losses.reasons():
        print(f"differs: {printable(loss)}", file=sys.stderr)
    print(
        f"{out}: {stored.programs:,} programs, {stored.turns:,} turns, "
        f"{len(stored.repairs)} repairs, {len(stored.rejections)} files rejected"
    )


def _print_progress(progress: Progress) -> None:
    print(
        f"{progress.read_bytes / max(progress.all_bytes, 1):.0%}, {progress.programs:,} programs, "
        f"{progress.remaining_s:,.0f} s left",
        file=sys.stderr,
    )


COMMANDS = (("pack", pack, PACK_HELP),)
