"""Sweeps against failing engines, all started at once, since they mostly wait."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.engine import engine
from tests.lines import read_lines
from traces import Program, Turn
from traces.formats.native import write_programs

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    Program(f"job-{k}", tuple(Turn(10 + 16 * i, 6, 16 * i, ("ls",), None, 0.01) for i in range(3)))
    for k in range(10)
]
TIMEOUTS = ("--lost-after-s", "5", "--stuck-after-s", "6")
REPLAY = ("--turn-timeout-s", "8", "--traces", "t.jsonl")
SWEEP_TIMEOUT_S = 600.0


@dataclass
class Sweep:
    folder: Path
    process: subprocess.Popen[str]
    _complaints: str | None = None

    def ended(self) -> tuple[int, str]:
        """Wait for the sweep; return its exit code and stderr."""
        if self._complaints is None:
            self._complaints = self.process.communicate(timeout=SWEEP_TIMEOUT_S)[1]
        return self.process.returncode, self._complaints

    def cell(self, name: str) -> Cell:
        return Cell(self.folder / "o" / name, self.folder / f"struck-{name}")


@dataclass(frozen=True)
class Cell:
    folder: Path
    struck: Path

    def lines(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / "turns.jsonl")

    def error_of(self, program_id: str) -> str:
        """Return the error of this program's first failed turn."""
        failed = (line for line in self.lines() if line["error"] is not None)
        return next(str(line["error"]) for line in failed if line["program_id"] == program_id)

    def failed(self) -> dict[str, Any] | None:
        path = self.folder / "failed.json"
        return json.loads(path.read_text()) if path.exists() else None

    def is_done(self) -> bool:
        return (self.folder / "done.json").exists()

    def noticed_within_s(self) -> float:
        """Return the time from the fault to the end of the cell; 0 if the fault has no time."""
        if not self.struck.exists():
            return 0.0
        return (self.folder / "failed.json").stat().st_mtime - self.struck.stat().st_mtime


def sweep(bench: str, folder: Path, *options: str) -> Sweep:
    folder.mkdir(exist_ok=True)
    write_programs(folder / "t.jsonl", PROGRAMS)
    process = subprocess.Popen(
        [bench, "sweep", "--jps", "20", "--out", "o", *TIMEOUTS, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Sweep(folder, process)


def sweep_of_vllm(
    bench: str, folder: Path, policy: str, faults: Sequence[str], *options: str
) -> Sweep:
    """Start a sweep with one cell per fault, at seeds from 1."""
    folder.mkdir(parents=True, exist_ok=True)
    variant = f"{policy}-sticky" if "--replicas" in options else policy
    cells = {cell_name(variant, seed): fault for seed, fault in enumerate(faults, 1)}
    python = engine(folder, cells)
    engine_options = ("--engine", "vllm", "--vllm-python", python, "--policies", policy)
    seeds = f"1..{len(faults)}" if len(faults) > 1 else "1"
    return sweep(bench, folder, *engine_options, "--seeds", seeds, *options)


def cell_name(policy: str, seed: int) -> str:
    return f"{policy}_jps20_seed{seed}"


def standalone_server(folder: Path, fault: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server that no launcher supervises; return it and its URL."""
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.engine", str(folder), fault],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()
