"""JCTs against the load where capacities were searched: all cells, and the knee of each policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from test_capacity_answer import point

from reports.capacity.estimate import Capacity, Kind
from reports.figures.knee import Knees
from reports.figures.overview import figures
from reports.figures.styles import Style
from reports.loads import RATES
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import VariantCapacity

STYLE = {"fcfs": Style(0, "circle", "solid"), "a": Style(2, "square", "solid")}
POINTS = [
    point("fcfs", 0.1, 60), point("a", 0.1, 58),
    point("fcfs", 0.2, 90), point("a", 0.2, 70),
    point("fcfs", 0.4, 450), point("a", 0.4, 120),
]  # fmt: skip


def cell(variant: str, seed: int, jps: float, mean_s: float, **more: Any) -> dict[str, Any]:
    valid = {"failed_gates": "", "unstable": ""}
    others = dict.fromkeys(("jct_p95_s", "throughput_jobs_per_s", "hit_ratio"), 2 * mean_s)
    goodput = {"goodput_turns": 1.0, "goodput_jobs": 1.0}
    row = {"variant": variant, "seed": seed, "jps": jps, "jct_mean_s": mean_s}
    return {**valid, **others, **goodput, **row, **more}


# Seed 1 of fcfs has no cell at 0.2 jobs/s, which is half way from 0.1 to 0.4 on a logarithmic axis.
CELLS = [
    cell("fcfs", 1, 0.1, 40.0), cell("fcfs", 1, 0.4, 160.0),
    cell("fcfs", 2, 0.1, 60.0), cell("fcfs", 2, 0.2, 90.0), cell("fcfs", 2, 0.4, 200.0),
    cell("a", 1, 0.1, 50.0), cell("a", 1, 0.8, 100.0),
    cell("a", 2, 0.1, 50.0), cell("a", 2, 0.8, 100.0),
]  # fmt: skip


def capacity(variant: str, load: float, not_sustained: float) -> VariantCapacity:
    own = Capacity(Kind.FOUND, load, load * 0.98, not_sustained)
    return VariantCapacity(variant, "", {1: own, 2: own}, None)


def drawn(
    limits_s: dict[str, float],
    cells: Sequence[dict[str, Any]] = CELLS,
    fcfs: VariantCapacity | None = None,
    emphasised: Sequence[str] = (),
) -> dict[str, Any]:
    found = [fcfs or capacity("fcfs", 0.25, 0.4), capacity("a", 0.6, 0.8)]
    by_name = {each.variant: each for each in found}
    knees = Knees(pd.DataFrame(cells), by_name, limits_s, RATES)
    every = figures(POINTS, STYLE, list(emphasised), knees)
    return {figure.id: figure.spec for figure in every}


def trace(spec: Any, variant: str, kind: str = "line") -> Any:
    found = [t for t in spec["data"] if t["meta"].get("variant") == variant]
    (only,) = [t for t in found if t["meta"]["kind"] == kind]
    return only


def kinds(spec: Any) -> set[str]:
    return {t["meta"]["kind"] for t in spec["data"]}


def test_a_line_is_the_mean_of_its_seeds_interpolated_where_one_has_no_cell() -> None:
    # At 0.2 jobs/s the line of seed 1 is at √(40 · 160) = 80 s, and seed 2 has 90 s.
    line = trace(drawn({"ttft_p95": 5.0})["jct-mean"], "fcfs")
    assert line["x"] == [0.1, 0.2, 0.4]
    assert line["y"] == pytest.approx([50.0, 85.0, 180.0])


def test_every_cell_of_a_variant_is_drawn() -> None:
    found = trace(drawn({"ttft_p95": 5.0})["jct-mean"], "fcfs", "cells")
    assert sorted(zip(found["x"], found["y"], strict=True)) == [
        (0.1, 40.0), (0.1, 60.0), (0.2, 90.0), (0.4, 160.0), (0.4, 200.0)
    ]  # fmt: skip


def test_cells_above_the_first_load_that_is_not_sustained_are_chance() -> None:
    spec = drawn({"ttft_p95": 5.0}, fcfs=capacity("fcfs", 0.15, 0.2))["jct-mean"]
    assert max(trace(spec, "fcfs", "cells")["x"]) == 0.2


def test_a_line_ends_at_its_capacity_on_the_slo_if_it_limits_this_statistic_alone() -> None:
    spec = drawn({"mean": 100.0})["jct-mean"]
    line, knee = trace(spec, "fcfs"), trace(spec, "fcfs", "knee")
    assert (line["x"], line["y"]) == ([0.1, 0.2, 0.25], pytest.approx([50, 85, 100]))
    assert (knee["x"], knee["y"]) == ([0.25], [100.0])
    assert knee["marker"]["symbol"] == "circle-open"


def test_with_other_limits_the_capacity_is_at_the_mean_of_what_the_seeds_have_at_theirs() -> None:
    # The line of a doubles over a factor of 8: its slope is 1/3. 0.6 is six times 0.1.
    knee = trace(drawn({"ttft_p95": 5.0})["jct-mean"], "a", "knee")
    assert knee["y"] == pytest.approx([50.0 * 6 ** (1 / 3)])


def test_a_variant_that_is_unstable_with_a_seed_at_every_load_is_not_drawn() -> None:
    cells = [
        c | {"unstable": "grows"} if (c["variant"], c["seed"]) == ("a", 2) else c for c in CELLS
    ]
    spec = drawn({"mean": 100.0}, cells)["jct-mean"]
    assert {t["meta"].get("variant") for t in spec["data"]} == {"fcfs", None}


def test_cells_that_failed_a_gate_are_not_drawn() -> None:
    cells = [*CELLS, cell("fcfs", 1, 0.2, 1.0, failed_gates="late")]
    assert 1.0 not in trace(drawn({"mean": 100.0}, cells)["jct-mean"], "fcfs", "cells")["y"]


def test_values_far_above_the_slo_are_left_out() -> None:
    cells = [*CELLS, cell("fcfs", 1, 0.3, 301.0)]
    assert 301.0 not in trace(drawn({"mean": 100.0}, cells)["jct-mean"], "fcfs", "cells")["y"]


def test_a_dotted_line_with_its_value_is_at_the_limit_of_the_slo_up_to_the_last_line() -> None:
    spec = drawn({"mean": 120.0})["jct-mean"]
    (limit,) = [t for t in spec["data"] if t["meta"]["kind"] == "limit"]
    assert limit["y"] == [120, 120]
    assert (min(limit["x"]), max(limit["x"])) == (0.1, 0.6)
    assert limit["text"] == ["SLO: 120 s", ""]
    assert limit["line"]["dash"] == "dot"


def test_a_limit_is_drawn_in_the_figure_of_its_statistic_only() -> None:
    specs = drawn({"p95": 300.0})
    assert "limit" in kinds(specs["jct-p95"])
    assert "limit" not in kinds(specs["jct-mean"])


def test_the_band_has_a_label_and_covers_rates_that_all_seeds_sustain() -> None:
    spec = drawn({"mean": 120.0}, emphasised=["fcfs", "a"])["jct-mean"]
    assert set(trace(spec, "fcfs", "band")["x"]) == {0.1, 0.2}
    assert "Bands: 95% CI of fcfs and a." in spec["note"]


def test_a_metric_that_may_be_zero_is_interpolated_between_its_values() -> None:
    cells = [c | {"hit_ratio": c["jps"] - 0.1} for c in CELLS]
    line = trace(drawn({"mean": 100.0}, cells)["hits"], "fcfs")
    # Half way from 0 at 0.1 to 0.3 at 0.4 jobs/s, on a logarithmic axis of rates, and 0.1.
    assert line["y"][1] == pytest.approx((0.15 + 0.1) / 2)


def test_one_seed_has_no_band() -> None:
    nothing = Estimate(60.0, math.nan, math.nan)
    alone = [replace(each, jct_mean_s=nothing) for each in POINTS]
    found = figures(alone, STYLE, ["fcfs"])[0].spec
    assert kinds(found) == {"line"}
    assert "Band" not in found["note"]
