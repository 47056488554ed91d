"""Sweeps against engines that break, all begun at once, since most of their time is waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.engine import engine
from traces import Program, Turn
from traces.formats.native import write_programs

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    Program(f"job-{k}", tuple(Turn(10 + 16 * i, 6, 16 * i, ("ls",), None, 0.01) for i in range(3)))
    for k in range(10)
]
PATIENCE = ("--lost-after-s", "5", "--stuck-after-s", "6")
REPLAY = ("--turn-timeout-s", "8", "--traces", "t.jsonl")
WITHIN_S = 600.0


@dataclass
class Sweep:
    folder: Path
    process: subprocess.Popen[str]
    _complaints: str | None = None

    def ended(self) -> tuple[int, str]:
        """Exit code and stderr."""
        if self._complaints is None:
            self._complaints = self.process.communicate(timeout=WITHIN_S)[1]
        return self.process.returncode, self._complaints

    def cell(self, name: str) -> Cell:
        return Cell(self.folder / "o" / name, self.folder / f"struck-{name}")


@dataclass(frozen=True)
class Cell:
    folder: Path
    struck: Path

    def lines(self) -> list[dict[str, Any]]:
        return _lines(self.folder / "turns.jsonl")

    def error_of(self, program_id: str) -> str:
        """Of the first turn of this program that failed."""
        failed = (line for line in self.lines() if line["error"] is not None)
        return next(str(line["error"]) for line in failed if line["program_id"] == program_id)

    def failed(self) -> dict[str, Any] | None:
        path = self.folder / "failed.json"
        return json.loads(path.read_text()) if path.exists() else None

    def is_done(self) -> bool:
        return (self.folder / "done.json").exists()

    def noticed_within_s(self) -> float:
        """From the fault, where it has a time, to the cell's end, its server stopped."""
        if not self.struck.exists():
            return 0.0
        return (self.folder / "failed.json").stat().st_mtime - self.struck.stat().st_mtime


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def sweep(bench: str, folder: Path, *options: str) -> Sweep:
    folder.mkdir(exist_ok=True)
    write_programs(folder / "t.jsonl", PROGRAMS)
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    process = subprocess.Popen(
        [bench, "sweep", "--jps", "20", "--out", "o", *PATIENCE, *options],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Sweep(folder, process)


def sweep_of_vllm(
    bench: str, folder: Path, policy: str, faults: Sequence[str], *options: str
) -> Sweep:
    """A cell for each fault, by seed from 1."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = {cell_name(policy, seed): fault for seed, fault in enumerate(faults, 1)}
    python = engine(folder, cells)
    asked = ("--engine", "vllm", "--vllm-python", python, "--policies", policy)
    seeds = f"1..{len(faults)}" if len(faults) > 1 else "1"
    return sweep(bench, folder, *asked, "--seeds", seeds, *options)


def cell_name(policy: str, seed: int) -> str:
    return f"{policy}_jps20_seed{seed}"


def served_alone(folder: Path, fault: str) -> tuple[subprocess.Popen[str], str]:
    """A server of nobody's, and its URL."""
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.engine", str(folder), fault],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()
