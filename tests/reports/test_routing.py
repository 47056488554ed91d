"""Metrics of routers and the page's tables of them, worked by hand."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import convert

from reports.figures.memory import replica_memory
from reports.metrics.cells import collect
from reports.metrics.routing import ROUTING, routing
from reports.page.tables import routers
from reports.page.write import write
from reports.run_folder.read import CellRun, load_run
from reports.statistics.points import points
from reports.table import TableCell as Shown
from reports.table import TableRow
from servers.records.cell import CellRecord
from servers.records.done import DoneRecord
from tests.reports.make_run import turn, workload, write_cell, write_sweep


def columns(*turns: tuple[str, int, int, float, float, int, int]) -> dict[str, Any]:
    """Return columns of turns: program, turn, replica, held_s, seconds in the system, kept tokens
    and hits. Each prompt has 100 tokens."""
    program, number, replica, held, there, kept, hits = zip(*turns, strict=True)
    zero = np.zeros(len(turns))
    return {
        "program_id": np.array(program, dtype=object),
        "turn": np.array(number, dtype=float),
        "replica": np.array(replica, dtype=float),
        "held_s": np.array(held),
        "sent_at_s": zero,
        "finished_at_s": np.array(there),
        "prompt_tokens": zero + 100,
        "kept_tokens": np.array(kept, dtype=float),
        "device_hit_tokens": np.array(hits, dtype=float),
        "dram_hit_tokens": zero,
        "ssd_hit_tokens": zero,
    }


def cell(replicas: int, done: dict[str, Any] | None = None) -> CellRun:
    config = {"variant": "fcfs", "jps": 1.0, "seed": 1, "arrivals": "poisson", "workload": {}}
    ended = {"finished_programs": 0, "failed_turns": 0, **(done or {})}
    return CellRun(
        Path("cell"),
        convert({**config, "replicas": replicas}, CellRecord),
        convert(ended, DoneRecord),
    )


def test_one_replica_has_no_numbers_of_routing() -> None:
    assert routing(cell(1), 1, columns(("a", 0, 0, 0.0, 1.0, 0, 0))) == {}


def test_routing_has_columns_for_imbalance_migrations_and_lost_hits() -> None:
    # Replica 0 has 4 s of turns and replica 1 has 2 s, without the second for which a turn was
    # held: 4 ÷ 3. The turn a.1 migrates, and finds 20 of its 80 tokens: 60 of 400 are lost.
    turns = columns(
        ("a", 0, 0, 0.0, 4.0, 0, 0),
        ("a", 1, 1, 0.0, 1.0, 80, 20),
        ("b", 0, 1, 1.0, 1.5, 0, 0),
        ("b", 1, 1, 3.0, 3.5, 80, 0),
    )
    sampled = {"replica_blocks": [[6, 0], [0, 2]]}  # on average 3 and 1: 3 ÷ 2
    assert routing(cell(2, sampled), 2, turns) == {
        "replica_imbalance": pytest.approx(4 / 3),
        "memory_imbalance": 1.5,
        "migrations_per_job": 0.5,
        "migration_lost_ratio": 0.15,
        "held_turn_ratio": 0.5,
        "held_mean_s": 2.0,
        "held_max_s": 3.0,
    }


def test_a_replica_without_turns_counts_as_idle() -> None:
    found = routing(cell(4), 1, columns(("a", 0, 3, 0.0, 1.0, 0, 0)))
    assert found["replica_imbalance"] == 4.0
    assert math.isnan(found["memory_imbalance"])


def test_turns_that_name_no_replica_have_no_numbers() -> None:
    turns = columns(("a", 0, 0, 0.0, 1.0, 0, 0))
    turns["replica"][:] = np.nan
    found = routing(cell(2), 1, turns)
    assert list(found) == list(ROUTING.columns)
    assert all(math.isnan(value) for value in found.values())


def routed_run(run: Path) -> Path:
    """Write a run of two policies behind two routers: 20 jobs of one turn, 10 s apart."""
    jct_s = {"fcfs@a": 30.0, "fcfs@b(k=2)": 20.0, "las@a": 10.0, "las@b(k=2)": 40.0}
    jobs = [turn(f"p{k:02d}", 0, 10.0 * k) for k in range(20)]
    write_sweep(run, list(jct_s), workload=workload(jobs), baseline="fcfs@a")
    for name, seconds in jct_s.items():
        turns = [
            turn(f"p{k:02d}", 0, 10.0 * k, decode_s=seconds) | {"replica": k % 2, "held_s": 0.0}
            for k in range(20)
        ]
        write_cell(run, name, turns, replicas=2)
    return run


def test_the_page_has_a_table_of_policies_against_routers(tmp_path: Path) -> None:
    report = write(routed_run(tmp_path))
    tables = routers(load_run(tmp_path).sweep.variants, report.points, report.result)
    assert tables is not None
    ((caption, grid),) = tables.grids
    assert caption.startswith("Mean JCT at ")
    assert grid.heads == ["Router", "fcfs", "las"]
    assert grid.rows == [
        TableRow("a", [Shown("30.0", best=False), Shown("10.0", best=True)]),
        TableRow("b(k=2)", [Shown("20.0", best=False), Shown("40.0", best=False)]),
    ]
    turns = tables.turns
    assert [row.name for row in turns.rows] == ["fcfs@a", "fcfs@b(k=2)", "las@a", "las@b(k=2)"]
    assert (turns.heads[1], turns.rows[0].cells[0].text) == ("Busiest ÷ mean", "1")
    html = report.path.read_text()
    assert '<h2 id="routers">Routers</h2>' in html


def test_a_point_pools_the_columns_over_seeds(tmp_path: Path) -> None:
    run = load_run(routed_run(tmp_path))
    found = points(collect(run), "fcfs@a")
    assert set(found[0].pooled) >= set(ROUTING.columns)
    assert found[0].pooled["migrations_per_job"] == 0.0


def test_memory_of_the_replicas_over_time() -> None:
    done = {
        "usage": [[1.0, 6, 0, 0, 1, 0, 0], [2.0, 9, 0, 0, 1, 0, 0]],
        "replica_blocks": [[6, 0, 0], [1, 3, 5]],
        "kv_blocks": 30,
    }
    figure = replica_memory({"one": cell(1), "three": cell(3, done)})
    assert figure is not None
    assert list(figure.specs) == ["three"]
    mean, most, fewest = figure.spec["data"]
    assert mean["x"] == [1.0, 2.0]
    assert (mean["y"], most["y"], fewest["y"]) == ([2, 3], [6, 5], [0, 1])
    assert figure.spec["layout"]["yaxis"]["range"] == [0, pytest.approx(10.4)]


def test_cells_of_one_replica_have_no_figure_of_replicas() -> None:
    assert replica_memory({"one": cell(1, {"usage": [[1.0, 6, 0, 0, 1, 0, 0]]})}) is None


@pytest.mark.parametrize(
    ("names", "noun"),
    [
        (("fcfs@a", "fcfs@b"), "router"),
        (("fcfs@a", "las@a"), "scheduler"),
        (("fcfs@a", "fcfs@b", "las@a", "las@b"), "variant"),
    ],
)
def test_the_headline_names_the_axis_that_was_asked_for(
    tmp_path: Path, names: Sequence[str], noun: str
) -> None:
    write_sweep(tmp_path, names, baseline="fcfs@a")
    for place, name in enumerate(names):
        write_cell(tmp_path, name, [turn(f"p{k:02d}", 0, 99.0 * k, decode_s=10.0 + place)
                                    for k in range(20)])  # fmt: skip
    headline = write(tmp_path).result.headline
    assert headline.startswith(f"No {noun} is faster than fcfs@a, ")


def test_a_large_loss_has_a_name_in_the_figures_of_many_variants(tmp_path: Path) -> None:
    names = [f"fcfs@{letter}" for letter in "abcdefgh"]
    write_sweep(tmp_path, names, jps=[0.1, 0.5], baseline="fcfs@a")
    for jps in (0.1, 0.5):
        for place, name in enumerate(names):
            jct_s = 75.0 if name == "fcfs@e" else 10.0 + place
            turns = [turn(f"p{k:02d}", 0, 99.0 * k, decode_s=jct_s) for k in range(20)]
            write_cell(tmp_path, name, turns, jps=jps)
    page = write(tmp_path).path.read_text()
    pressed = re.findall(r'data-variant="([^"]*)" aria-pressed="true"', page)
    assert "fcfs@e" in pressed
    assert "fcfs@h" not in pressed
