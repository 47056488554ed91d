"""Few measurements of a live engine test no difference: they do not show how much it varies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_answer import idle

from reports.answer.report import Report
from reports.page.write import write
from tests.reports.make_run import workload, write_cell, write_sweep
from tests.sentences import mentions


def live(run: Path, engine: str = "vllm", seeds: int = 1, repeats: int = 1) -> Report:
    """Write a run in which continuum takes half the time of fcfs in each measurement."""
    fields: dict[str, Any] = {} if repeats == 1 else {"repeats": list(range(1, repeats + 1))}
    write_sweep(
        run,
        ["fcfs", "continuum"],
        seeds=range(1, seeds + 1),
        engine=engine,
        workload=workload(idle(1.0)),
        **fields,
    )
    for seed in range(1, seeds + 1):
        for repeat in range(1, repeats + 1):
            again = {} if repeat == 1 else {"repeat": repeat}
            for name, jct_s in (("fcfs", 20.0), ("continuum", 10.0)):
                cell = write_cell(run, name, idle(jct_s), seed=seed, engine=engine, **again)
                cell.rename(cell.with_name(f"{cell.name}_repeat{repeat}"))
    return write(run)


def test_with_one_measurement_no_difference_is_significant(tmp_path: Path) -> None:
    report = live(tmp_path)
    gain = "10.0 s at 0.5 jobs/s", "2.0x as fast as fcfs", "too few seeds"
    assert mentions(report.result.headline, "continuum", *gain)
    assert mentions(report.result.caveats[0], "--repeats 3 or --seeds 1..3", "--aa", "fcfs")
    (point,) = [p for p in report.points if p.variant == "continuum"]
    assert point.against is not None
    assert not point.against.mean.has_interval
    assert '<td class="faster' not in (tmp_path / "report.html").read_text()
    (ratio,) = [p["speed_up"] for p in json.loads((tmp_path / "answer.json").read_text())["points"]
                if p["speed_up"]]  # fmt: skip
    assert ratio == {"value": 2.0, "low": None, "high": None}


@pytest.mark.parametrize(("seeds", "repeats"), [(2, 1), (1, 2), (2, 3)])
def test_two_measurements_do_not_show_the_variation_either(
    tmp_path: Path, seeds: int, repeats: int
) -> None:
    report = live(tmp_path, seeds=seeds, repeats=repeats)
    assert report.result.caveats[0].startswith("Two measurements of each variant: ")


@pytest.mark.parametrize(("seeds", "repeats"), [(1, 3), (3, 1)])
def test_three_seeds_or_repeats_test_differences(tmp_path: Path, seeds: int, repeats: int) -> None:
    headline = live(tmp_path, seeds=seeds, repeats=repeats).result.headline
    assert mentions(headline, "continuum", "2.0x as fast as fcfs", "95%")


def test_one_seed_is_enough_in_virtual_time_which_has_no_noise(tmp_path: Path) -> None:
    headline = live(tmp_path, engine="sim").result.headline
    assert mentions(headline, "continuum", "2.0x as fast as fcfs", "95%")


def test_two_equal_policies_behind_one_router_are_equal(tmp_path: Path) -> None:
    jct_s = {"fcfs@sticky": 20.0, "continuum@sticky": 10.0, "static-ttl@sticky": 10.0}
    write_sweep(tmp_path, list(jct_s), engine="vllm", baseline="fcfs@sticky")
    for name, each in jct_s.items():
        write_cell(tmp_path, name, idle(each), engine="vllm")
    result = write(tmp_path).result
    assert set(result.winners) == {"continuum@sticky", "static-ttl@sticky"}
    tie = "continuum@sticky and static-ttl@sticky", "about 10.0 s", "2.0x as fast as fcfs@sticky"
    assert mentions(result.headline, "2%", *tie)
