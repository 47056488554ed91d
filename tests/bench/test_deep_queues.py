"""CPU time per turn of each policy with 100, 1,000 and 10,000 programs, of which nearly all wait.

PROGRAMS=100,1000 takes other numbers. The compiled core runs if there is one, else its sources. In
parentheses: the multiple of what `fcfs` takes with as many programs, which the same process
measures just before. A cell stops after 20 s. No time fails a test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from servers.basics.compiled_core import WORKER, find_core
from servers.variants import ALL

PROGRAMS = tuple(map(int, os.environ.get("PROGRAMS", "100,1000,10000").split(",")))
TURNS = 3000


class Cells:
    """A process that simulates cells."""

    def __init__(self) -> None:
        folder = find_core({}).folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.deep_queue"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=os.environ | ({WORKER: str(folder)} if folder else {}),
        )

    def us_per_turn(self, programs: int, turns: int, name: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{programs} {turns} {name}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


@pytest.fixture(scope="module")
def cells() -> Iterator[Cells]:
    running = Cells()
    yield running
    running.process.communicate(timeout=60)


@pytest.mark.parametrize("name", ALL)
def test_cpu_time_per_turn_in_a_deep_queue(
    name: str, cells: Cells, benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes, turns = (PROGRAMS, TURNS) if benchmark.enabled else ((50,), 50)
    times: dict[int, tuple[float, float]] = {}

    def simulate_all() -> None:
        for programs in sizes:
            of_fcfs = cells.us_per_turn(programs, turns, "fcfs")
            times[programs] = of_fcfs, cells.us_per_turn(programs, turns, name)

    benchmark.pedantic(simulate_all, rounds=1, iterations=1)  # type: ignore[no-untyped-call]
    assert len(times) == len(sizes)
    benchmark.extra_info["us_per_turn"] = {programs: us for programs, (_, us) in times.items()}
    with capsys.disabled():
        columns = [f"{us:,.0f} us ({us / of_fcfs:.1f}x)" for of_fcfs, us in times.values()]
        print(f"\n{name}: " + ", ".join(columns))
