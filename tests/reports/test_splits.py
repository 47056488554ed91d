"""In a sweep of several splits (`--disaggregate none,1P1D`) each split is a variant of its own."""

from __future__ import annotations

from pathlib import Path

import orjson
from msgspec import convert
from test_answer import answer_of, idle
from test_capacity_answer import SWEEP, chains

from reports.answer.capacity import capacity_answer
from reports.answer.capacity_context import CapacityContext
from reports.capacity.slo import parse_slo
from reports.statistics.capacities import capacities
from servers.records.sweep import SweepRecord
from tests.reports.make_run import workload, write_cell, write_sweep
from tests.sentences import mentions

NAMES = ("fcfs@sticky", "fcfs@sticky@1P1D")


def capacity_headline(*per_seed: tuple[float, ...]) -> str:
    split = {"disaggregate": {"name": "1P1D"}}
    variants = [
        {"name": name, "offload": None, "router": {"name": "sticky"}, **more}
        for name, more in zip(NAMES, ({}, split), strict=True)
    ]
    fields = {"variants": variants, "baseline": NAMES[0], "gpus": 2}
    sweep = convert(SWEEP | fields, SweepRecord)
    found = {
        chain._replace(variant=NAMES[int(chain.variant[1:])]): each
        for chain, each in chains(v0=per_seed[0], v1=per_seed[1]).items()
    }
    context = CapacityContext(sweep, parse_slo("mean<=2x"), 45.0)
    all_found = capacities(found, dict.fromkeys(NAMES, ""), NAMES[0])
    return capacity_answer(all_found, (), context, ()).headline


def test_the_best_split_is_compared_with_the_baseline() -> None:
    gain = "fcfs@sticky@1P1D", "0.4 jobs/s", "2 x b200", "2.0x", "fcfs@sticky (95% CI"
    assert mentions(capacity_headline((0.2,) * 3, (0.4,) * 3), *gain)


def test_variants_that_differ_in_the_split_are_not_called_schedulers() -> None:
    best = "No variant", "fcfs@sticky", "0.4 jobs/s", "2 x b200."
    assert mentions(capacity_headline((0.4,) * 3, (0.2,) * 3), *best)


def test_job_completion_times_of_splits_are_compared_as_those_of_other_variants(
    tmp_path: Path,
) -> None:
    jct_s = dict(zip(NAMES, (10.0, 20.0), strict=True))
    write_sweep(tmp_path, list(jct_s), workload=workload(idle(1.0)))
    variants = [
        {"name": name, "offload": None, "router": {"name": "sticky"}, **more}
        for name, more in zip(NAMES, ({}, {"disaggregate": {"name": "1P1D"}}), strict=True)
    ]
    fields = {"variants": variants, "baseline": NAMES[0], "seeds": [1]}
    sweep = orjson.loads((tmp_path / "sweep.json").read_bytes()) | fields
    (tmp_path / "sweep.json").write_bytes(orjson.dumps(sweep))
    for name, each in jct_s.items():
        write_cell(tmp_path, name, idle(each))
    headline = answer_of(tmp_path).headline
    assert "No variant is faster than fcfs@sticky" in headline
