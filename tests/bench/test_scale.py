"""10,000 programs and a million turns in one cell: time, memory and lateness.

`make scale PROGRAMS=10000` runs `bench sweep`, in virtual time and against a trivial server in a
separate process; if nothing is timed, with a few programs. The load is the same at every size, so
that about 400 programs are in flight. Then 1, 10, … up to REPLICAS=100 replicas serve a thousand
short programs each at the same load per replica, of which about 20 are in flight. `cell_mb` is the
peak memory of the process that runs the cell, `report_mb` that of the process that writes the
report, and `cell_cpu_s` and `report_cpu_s` are their CPU times, which depend less than `wall_s` on
what else the machine does.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from reports.run_folder.lines import find_lines, open_lines
from tests.bench.trivial_server import trivial_server
from tests.leaks import descendants
from traces import Program, Turn
from traces.formats.native import write_programs

PROGRAMS = int(os.environ.get("PROGRAMS", "10000"))
SIZES = (PROGRAMS // 10, PROGRAMS)
REPLICAS = int(os.environ.get("REPLICAS", "100"))
PROGRAMS_PER_REPLICA, TURNS_OF_SHORT, JPS_PER_REPLICA = 1000, 2, 10.0
TURNS, GAP_S, JPS = 100, 1.0, 4.0
ROOT = Path(__file__).parents[2]
SAMPLE_INTERVAL_S = 0.2


def write_trace(path: Path, turns_each: int) -> str:
    """Write twenty programs for the sweep to repeat, with prompts of 60 to 1,000 tokens."""

    def turns(number: int) -> tuple[Turn, ...]:
        return tuple(
            Turn(60 + 10 * k, 4, 54 + 10 * k if k else 0, ("ls",), None, GAP_S + number / 100)
            for k in range(turns_each)
        )

    write_programs(path, [Program(f"p{n}", turns(n)) for n in range(20)])
    return str(path)


@pytest.fixture
def url() -> Iterator[str]:
    with trivial_server() as url:
        yield url


class MeasuredCommand:
    """A command with its duration, and peak memory and CPU time of itself and of its largest
    child."""

    def __init__(self, command: list[str]) -> None:
        self.own_mb = self.child_mb = self.own_cpu_s = self.child_cpu_s = 0.0
        started_s = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            watching = threading.Thread(target=self._watch, args=(process,))
            watching.start()
            self.code = process.wait()
            watching.join()
        self.wall_s = time.monotonic() - started_s

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            self.own_mb = max(self.own_mb, peak_mb(process.pid))
            children = descendants(process.pid)
            self.child_mb = max(self.child_mb, *map(peak_mb, children), 0)
            self.own_cpu_s = max(self.own_cpu_s, cpu_s(process.pid))
            self.child_cpu_s = max(self.child_cpu_s, *map(cpu_s, children), 0)
            time.sleep(SAMPLE_INTERVAL_S)


def peak_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((float(x.split()[1]) / 1024 for x in status.splitlines() if "VmHWM" in x), 0.0)


def cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    bench: str,
    folder: Path,
    programs: int,
    *engine: str,
    jps: float = JPS,
    turns_each: int = TURNS,
) -> dict[str, Any]:
    trace = write_trace(folder / "trace.jsonl", turns_each)
    command = [bench, "sweep", "--once", "--traces", trace, "--programs", str(programs), *engine]
    run = MeasuredCommand(
        [*command, "--jps", f"{jps:g}", "--out", str(folder / "run"), "--workers", "1"]
    )
    (cell,) = (path.parent for path in (folder / "run").glob("*/cell.json"))
    lines = find_lines(cell / "turns.jsonl")
    assert lines is not None
    late_s, failed = [], 0
    with open_lines(lines) as file:
        for line in map(orjson.loads, file):
            late_s.append(line["sent_at_s"] - line["scheduled_at_s"])
            failed += line["error"] is not None
    assert run.code in (0, 1)  # a busy machine may fail the gate on client lateness
    assert (len(late_s), failed) == (programs * turns_each, 0)
    p50, p99, maximum = np.percentile(late_s, [50, 99, 100]) * 1e3
    return {
        "programs": programs,
        "turns": len(late_s),
        "wall_s": round(run.wall_s, 1),
        "turns_per_s": round(len(late_s) / run.wall_s),
        "cell_cpu_s": round(run.child_cpu_s, 1),
        "report_cpu_s": round(run.own_cpu_s, 1),
        "cell_mb": round(run.child_mb),
        "report_mb": round(run.own_mb),
        "late_p50_ms": round(p50, 2),
        "late_p99_ms": round(p99, 2),
        "late_max_ms": round(maximum, 1),
    }


@pytest.mark.parametrize("policy", ["fcfs", "continuum"])
def test_a_million_turns_in_virtual_time(
    policy: str, benchmark: Any, tmp_path: Path, bench: str
) -> None:
    def run() -> list[dict[str, Any]]:
        return measure_sizes(bench, tmp_path, sizes, "--policies", policy)

    sizes = SIZES if benchmark.enabled else (3,)
    report(benchmark, benchmark.pedantic(run, rounds=1, iterations=1))


def test_a_million_turns_against_a_server(
    benchmark: Any, tmp_path: Path, bench: str, url: str
) -> None:
    def run() -> list[dict[str, Any]]:
        return measure_sizes(bench, tmp_path, sizes, "--engine", url)

    # Its turns take real time, so that without timing nothing runs; tests/soak has a small one.
    sizes = SIZES if benchmark.enabled else ()
    report(benchmark, benchmark.pedantic(run, rounds=1, iterations=1))


@pytest.mark.parametrize("router", ["sticky", "least-loaded(load=kv)", "thunderagent"])
def test_replicas_by_tens(router: str, benchmark: Any, tmp_path: Path, bench: str) -> None:
    def run() -> list[dict[str, Any]]:
        rows = []
        for replicas in sizes:
            (tmp_path / str(replicas)).mkdir()
            rows.append({"replicas": replicas} | of_replicas(replicas))
        return rows

    def of_replicas(replicas: int) -> dict[str, Any]:
        behind = ("--replicas", str(replicas), "--router", router) if replicas > 1 else ()
        return measure(
            bench,
            tmp_path / str(replicas),
            PROGRAMS_PER_REPLICA * replicas if benchmark.enabled else 3,
            *("--policies", "fcfs", *behind),
            jps=JPS_PER_REPLICA * replicas,
            turns_each=TURNS_OF_SHORT,
        )

    by_tens = [10**power for power in range(9) if 10**power <= REPLICAS]
    sizes = by_tens if benchmark.enabled else [2]
    report(benchmark, benchmark.pedantic(run, rounds=1, iterations=1))


def measure_sizes(
    bench: str, folder: Path, sizes: tuple[int, ...], *options: str
) -> list[dict[str, Any]]:
    rows = []
    for programs in sizes:
        (folder / str(programs)).mkdir()
        rows.append(measure(bench, folder / str(programs), programs, *options))
    return rows


def report(benchmark: Any, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print("\n" + ", ".join(f"{name} {value:,}" for name, value in row.items()))
    benchmark.extra_info["sizes"] = rows
