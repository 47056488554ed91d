"""A sweep of several splits (`--disaggregate none,1P1D`) is answered with their comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec import convert
from test_answer import answer_of, idle
from test_capacity_answer import SWEEP, chains

from reports.answer.capacity import capacity_answer
from reports.answer.capacity_context import capacity_context
from reports.capacity.slo import parse_slo
from reports.statistics.capacities import capacities
from servers.records.sweep import SweepRecord
from tests.reports.make_run import workload, write_cell, write_sweep


def variants(*names: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "offload": None,
            "router": {"name": "sticky"},
            **({"disaggregate": {"name": "1P1D"}} if name.endswith("@1P1D") else {}),
        }
        for name in names
    ]


def run_of(run: Path, jct_s: dict[str, float]) -> Path:
    fields = {"variants": variants(*jct_s), "baseline": "fcfs@sticky", "seeds": [1]}
    write_sweep(run, list(jct_s), workload=workload(idle(1.0)))
    sweep = orjson.loads((run / "sweep.json").read_bytes()) | fields
    (run / "sweep.json").write_bytes(orjson.dumps(sweep))
    for name, each in jct_s.items():
        write_cell(run, name, idle(each))
    return run


def capacity_headline(per_seed: dict[str, tuple[float, ...]]) -> str:
    names = list(per_seed)
    fields = {"variants": variants(*names), "baseline": "fcfs@sticky", "gpus": 2}
    sweep = convert(SWEEP | fields, SweepRecord)
    by_key = {f"v{index}": values for index, values in enumerate(per_seed.values())}
    found = {
        chain._replace(variant=names[int(chain.variant[1:])]): each
        for chain, each in chains(**by_key).items()
    }
    asked = capacity_context(sweep, parse_slo("mean<=2x"), 45.0)
    all_found = capacities(found, dict.fromkeys(names, ""), "fcfs@sticky")
    return capacity_answer(all_found, (), asked, sweep, ()).headline


def test_the_answer_compares_the_capacities_of_two_splits() -> None:
    # 0.5 with every seed; the interval of the logarithm with the prior is ±0.13.
    headline = capacity_headline({"fcfs@sticky": (0.4,) * 3, "fcfs@sticky@1P1D": (0.2,) * 3})
    assert headline == (
        "On 2 x b200, 1P1D sustains 0.2 jobs/s, 0.50x (95% CI 0.45–0.56) as many as engines that"
        " both prefill and decode, which sustain 0.4."
    )


def test_with_several_policies_the_best_of_each_split_is_compared_before_all() -> None:
    headline = capacity_headline(
        {
            "fcfs@sticky": (0.2,) * 3,
            "continuum@sticky": (0.4,) * 3,
            "fcfs@sticky@1P1D": (0.1,) * 3,
            "continuum@sticky@1P1D": (0.3,) * 3,
        }
    )
    first, second = headline.split(". ", 1)
    assert first == (
        "On 2 x b200, 1P1D with continuum@sticky@1P1D sustains 0.3 jobs/s, 0.75x (95% CI"
        " 0.67–0.84) as many as engines that both prefill and decode with continuum@sticky, which"
        " sustain 0.4"
    )
    assert second.startswith("continuum@sticky sustains 0.4 jobs/s")


def test_a_small_difference_between_splits_is_none() -> None:
    headline = capacity_headline({"fcfs@sticky": (0.2,) * 3, "fcfs@sticky@1P1D": (0.202,) * 3})
    assert headline.endswith("which sustain 0.2, no significant difference.")


@pytest.mark.parametrize(
    ("split_s", "says"),
    [
        (40.0, "1P1D is 0.50x (95% CI 0.50–0.50) as fast"),
        (10.0, "1P1D is 2.0x (95% CI 2.0–2.0) as fast"),
    ],
)
def test_the_answer_compares_the_jcts_of_two_splits(
    tmp_path: Path, split_s: float, says: str
) -> None:
    run = run_of(tmp_path, {"fcfs@sticky": 20.0, "fcfs@sticky@1P1D": split_s})
    assert answer_of(run).headline == (
        f"At 0.5 jobs/s {says} as engines that both prefill and decode: the mean job completion"
        f" time (JCT) is {split_s:.1f} s instead of 20.0 s."
    )
