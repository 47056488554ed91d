"""Turns simulated per second and core in contended cells, by policy and origin of step times.

The compiled core and its sources are compared: they run alternately, each in a process of its own.
Prints the turns per CPU second of both and their ratio; no time fails a test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from servers.basics.compiled_core import WORKER, find_core
from servers.profiles.cpu_time import StepTimes
from servers.variants import variants
from tests.bench.contended_cell import PROGRAMS, load, simulate

NAMES = [variant.name for variant in variants("all")]
ROUNDS = 5
UNTIMED = 10
"""Programs of a cell if nothing is timed."""


@pytest.mark.parametrize("step_times", StepTimes)
@pytest.mark.parametrize("name", NAMES)
def test_turns_per_second_in_a_contended_cell(
    name: str, step_times: StepTimes, benchmark: BenchmarkFixture
) -> None:
    programs, starts_s = load(PROGRAMS if benchmark.enabled else UNTIMED)
    turns: int = benchmark(simulate, name, step_times, programs, starts_s)
    if benchmark.stats is not None:
        benchmark.extra_info["turns_per_s"] = round(turns / benchmark.stats.stats.median)


class Core:
    """A process that simulates with a compiled core, or with the sources."""

    def __init__(self, folder: Path | None, programs: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.contended_cell", str(programs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=os.environ | ({WORKER: str(folder)} if folder else {}),
        )

    def turns_per_cpu_s(self, name: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        turns, cpu_s = self.process.stdout.readline().split()
        return int(turns) / float(cpu_s)


@pytest.fixture(scope="module")
def cores(request: pytest.FixtureRequest) -> Iterator[dict[str, Core]]:
    core = find_core({})
    if core.folder is None:
        pytest.skip(f"the compiled core is {core.finding}: run make compile")
    programs = UNTIMED if request.config.getoption("benchmark_disable") else PROGRAMS
    running = {"compiled": Core(core.folder, programs), "python": Core(None, programs)}
    yield running
    for each in running.values():
        each.process.communicate(timeout=60)


@pytest.mark.parametrize("name", NAMES)
def test_turns_per_cpu_second_of_the_compiled_core_and_of_its_sources(
    name: str,
    cores: dict[str, Core],
    benchmark: BenchmarkFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured: dict[str, list[float]] = {core: [] for core in cores}

    def simulate_with_both() -> None:
        for core, process in cores.items():
            measured[core].append(process.turns_per_cpu_s(name))

    benchmark.pedantic(  # type: ignore[no-untyped-call]
        simulate_with_both, rounds=ROUNDS if benchmark.enabled else 1, iterations=1
    )
    rates = {core: round(median(values)) for core, values in measured.items()}
    assert min(rates.values()) > 0
    benchmark.extra_info |= {f"{core}_turns_per_cpu_s": rate for core, rate in rates.items()}
    with capsys.disabled():
        ratio = rates["compiled"] / rates["python"]
        print(
            f"\n{name}: {rates['compiled']:,} turns per CPU second compiled, "
            f"{rates['python']:,} in Python, {ratio:.1f}x"
        )
