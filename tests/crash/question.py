"""A sweep small enough to be broken hundreds of times, and where each try is made."""

from __future__ import annotations

from pathlib import Path

from traces import Program, Turn
from traces.formats.native import write_programs

ROOT = Path(__file__).parents[2]
RUN = "run"
SAID = "said.txt"
"""What it said on stdout and stderr."""
SWEEP = ("sweep", "--traces", "t.jsonl", "--policies", "fcfs,continuum", "--jps", "0.5")
ALONE = (*SWEEP, "--out", RUN, "--workers", "1")
"""One cell after the other."""


def asked_in(folder: Path, programs: int = 3, gap_s: float = 1.0) -> Path:
    """Programs of three turns, in a folder for a run."""
    turns = (Turn(500, 50, 0, ("ls",), None, gap_s), Turn(900, 50, 550, ("ls",), None, 2 * gap_s))
    folder.mkdir(exist_ok=True)
    write_programs(
        folder / "t.jsonl",
        [Program(f"job-{k}", (*turns, Turn(1200, 50, 950))) for k in range(programs)],
    )
    return folder


def said_in(folder: Path) -> str:
    return (folder / SAID).read_text()
