"""How long the numbers of a large run take: 2,016 cells of 100 programs. The aim is 30 s and 1 GB
for the whole report on two cores."""

from __future__ import annotations

import os
import sys
from itertools import product
from pathlib import Path

import orjson
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
from make_run import VARIANTS, simulate, write_cell, write_sweep

from reports.load import load_run
from reports.metrics import collect
from reports.statistics import points

RATES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 0.7, 0.9)
EVENTS = 5
"""Of each turn, besides its pin."""


def large_run(run: Path, variants: list[str], seeds: range) -> Path:
    """Each variant and seed is simulated at one rate; the other rates link to its files."""
    write_sweep(run, variants, RATES, tuple(seeds))
    for name, seed in product(variants, seeds):
        turns = simulate(VARIANTS[name][3], VARIANTS[name][1], 0.3, seed, 100)
        first, *others = (write_cell(run, name, turns, jps=jps, seed=seed) for jps in RATES)
        (first / "engine.jsonl").write_bytes(b"".join(map(_events, turns)))
        for cell in others:
            for file in ("turns.jsonl", "engine.jsonl"):
                (cell / file).unlink()
                os.link(first / file, cell / file)
    return run


def _events(turn: dict[str, object]) -> bytes:
    about = {"program_id": turn["program_id"], "turn": turn["turn"]}
    lines = [{"t": turn["sent_at_s"], "event": "waiting_to_running", **about}] * EVENTS
    end = {"t": turn["finished_at_s"], **about}
    lines += [{**end, "event": "unpinned", "reason": "reused"}]
    lines += [{**end, "event": "pinned", "blocks": 90, "ttl_s": 2.0, "why": {"rule": "cdf"}}]
    return b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)


@pytest.mark.parametrize("seeds", [range(1, 17)], ids=["2016 cells"])
def test_the_numbers_of_a_large_run(
    benchmark: BenchmarkFixture, tmp_path: Path, seeds: range
) -> None:
    """Two variants and two seeds where nothing is timed."""
    names = list(VARIANTS)
    if not benchmark.enabled:
        names, seeds = names[:2], seeds[:2]
    run = large_run(tmp_path / "run", names, seeds)

    def numbers() -> int:
        return len(points(collect(load_run(run)), "fcfs"))

    found: int = benchmark.pedantic(numbers, rounds=1, iterations=1)  # type: ignore[no-untyped-call]
    assert found == len(names) * len(RATES)
