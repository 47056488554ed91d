"""A small sweep that the crash tests interrupt hundreds of times, and its folder."""

from __future__ import annotations

from pathlib import Path

from traces import Program, Turn
from traces.formats.native import write_programs

ROOT = Path(__file__).parents[2]
RUN = "run"
OUTPUT = "output.txt"
"""File with the stdout and stderr of the sweep."""
SWEEP = ("sweep", "--once", "--traces", "t.jsonl", "--policies", "fcfs,continuum", "--jps", "0.5")
ALONE = (*SWEEP, "--out", RUN, "--workers", "1")
"""The same sweep with one worker, so that cells run one after the other."""


def sweep_folder(folder: Path, programs: int = 3, gap_s: float = 1.0) -> Path:
    """Write a trace of programs with three turns; return its folder."""
    turns = (Turn(500, 50, 0, ("ls",), None, gap_s), Turn(900, 50, 550, ("ls",), None, 2 * gap_s))
    folder.mkdir(exist_ok=True)
    write_programs(
        folder / "t.jsonl",
        [Program(f"job-{k}", (*turns, Turn(1200, 50, 950))) for k in range(programs)],
    )
    return folder


def output_of(folder: Path) -> str:
    return (folder / OUTPUT).read_text()
