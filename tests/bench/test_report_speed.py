"""`bench report` on 2,000 cells of 100 programs; the goal is 30 s and 1 GB on two cores."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import orjson
from pytest_benchmark.fixture import BenchmarkFixture

from tests.reports.make_run import VARIANTS, make_run, seal, write_lines

RATES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 0.7, 0.9)
SEEDS = 16
USAGE = [[float(t), 1000, 100, 3, 16, 0, 0] for t in range(500)]


def events(turns: Path) -> list[dict[str, Any]]:
    """Return as many events per turn, of the same size, as a policy with pins records."""
    records = []
    for line in turns.read_bytes().splitlines():
        turn = orjson.loads(line)
        at_s, admitted_s = turn["sent_at_s"], turn["sent_at_s"] + turn["queue_s"]
        lengths = {"prompt_length": turn["prompt_tokens"], "hit_length": turn["device_hit_tokens"]}
        own: tuple[tuple[float, str, dict[str, Any]], ...] = (
            (at_s, "arrival", {}),
            (admitted_s, "waiting_to_running", lengths),
            (admitted_s, "unpinned", {"reason": "reused"}),
            (turn["finished_at_s"], "finished", {}),
            (turn["finished_at_s"], "pinned", {"ttl_s": 2.0, "blocks": 100, "why": {"tool": "ls"}}),
        )
        tags = {"program_id": turn["program_id"], "turn": turn["turn"]}
        records += [{"t": t, "event": name, **tags, **fields} for t, name, fields in own]
    return sorted(records, key=lambda event: event["t"])


def many_cells(
    folder: Path, variants: tuple[str, ...], rates: tuple[float, ...], seeds: int
) -> int:
    """Write a large run, in which all seeds share the first seed's files on disk."""
    make_run(folder, variants, rates, seeds=(1,))
    sweep = orjson.loads((folder / "sweep.json").read_bytes())
    sweep["seeds"] = list(range(1, seeds + 1))
    (folder / "sweep.json").write_bytes(orjson.dumps(sweep))
    first = sorted(folder.glob("*_seed1"))
    for cell in first:
        write_lines(cell / "engine.jsonl", events(cell / "turns.jsonl"))
        config, done = (orjson.loads((cell / f"{n}.json").read_bytes()) for n in ("cell", "done"))
        (cell / "done.json").write_bytes(orjson.dumps(done | {"usage": USAGE}))
        seal(cell)
        for seed in sweep["seeds"][1:]:
            copy = cell.with_name(cell.name.replace("_seed1", f"_seed{seed}"))
            copy.mkdir()
            (copy / "cell.json").write_bytes(orjson.dumps(config | {"seed": seed}))
            for name in ("turns.jsonl", "engine.jsonl", "done.json"):
                os.link(cell / name, copy / name)
            seal(copy)
    return len(first) * seeds


def test_a_report_of_2000_cells(benchmark: BenchmarkFixture, tmp_path: Path, bench: str) -> None:
    """If nothing is timed, the run has only a few cells."""
    size: tuple[Any, ...] = (tuple(VARIANTS), RATES, SEEDS)
    if not benchmark.enabled:
        size = (("fcfs", "continuum"), (0.1, 0.5), 2)
    cells = many_cells(tmp_path / "run", *size)

    def report() -> tuple[int, float]:
        """Return the exit code, and the memory of the largest process in MB."""
        command = [bench, "report", str(tmp_path / "run")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, used.ru_maxrss / 1024

    code, peak_mb = benchmark.pedantic(report, rounds=1, iterations=1)  # type: ignore[no-untyped-call]
    assert code == 0
    benchmark.extra_info |= {"cells": cells, "peak_mb": round(peak_mb)}
    print(f"\n{cells:,} cells: {peak_mb:,.0f} MB")
