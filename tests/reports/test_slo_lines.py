"""JCTs against the rate where capacities were searched: where lines end, and the SLO's line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from test_capacity_answer import NEVER, chains, point

from reports.figures.overview import figures
from reports.figures.slo_lines import SloLines
from reports.figures.styles import Style
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import VariantCapacity, capacities

STYLE = {"fcfs": Style(0, "circle", "solid"), "a": Style(2, "square", "solid")}
FOUND = capacities(
    chains(fcfs=(0.24, 0.25, 0.26), a=(0.4, 0.4, 0.4)), {"fcfs": False, "a": False}, "fcfs"
)
POINTS = [
    point("fcfs", 0.1, 60), point("a", 0.1, 58),
    point("fcfs", 0.2, 90), point("a", 0.2, 70),
    # Sustained with two of three seeds, up to 98% of 0.24, 0.25 and 0.26.
    point("fcfs", 0.245, 450), point("a", 0.245, 75),
    point("fcfs", 0.3, 900), point("a", 0.3, 80),
]  # fmt: skip


def drawn(
    limits_s: dict[str, float],
    *,
    ends: bool = True,
    emphasised: Sequence[str] = (),
    capacities: Sequence[VariantCapacity] = FOUND,
) -> dict[str, Any]:
    slo = SloLines(limits_s, {each.variant: each for each in capacities}, ends)
    found = figures(POINTS, STYLE, list(emphasised), slo)
    return {figure.id: figure.spec for figure in found}


def line(spec: Any, variant: str, kind: str = "line") -> Any:
    (found,) = [
        t for t in spec["data"] if t["meta"]["kind"] == kind and t["meta"]["variant"] == variant
    ]
    return found


def test_a_line_goes_up_to_the_capacity_of_its_variant_where_it_meets_the_slo() -> None:
    """The capacity of fcfs is (0.24 · 0.25 · 0.26)^(1/3) = 0.2499."""
    spec = drawn({"mean": 120.0})["jct-mean"]
    fcfs, a = line(spec, "fcfs"), line(spec, "a")
    assert [round(x, 4) for x in fcfs["x"]] == [0.1, 0.2, 0.2499]
    assert fcfs["y"] == [60, 90, 120]
    assert fcfs["marker"]["symbol"] == ["circle", "circle", "circle-open"]
    assert [round(x, 4) for x in a["x"]] == [0.1, 0.2, 0.245, 0.3, 0.4]


def test_no_mean_is_drawn_of_seeds_that_meet_the_slo_and_seeds_that_miss_it() -> None:
    assert 450 not in line(drawn({"mean": 120.0})["jct-mean"], "fcfs")["y"]


def test_a_dotted_line_with_its_value_is_at_the_limit_of_the_slo() -> None:
    spec = drawn({"mean": 120.0})["jct-mean"]
    (limit,) = [t for t in spec["data"] if t["meta"]["kind"] == "limit"]
    assert limit["y"] == [120, 120]
    assert (min(limit["x"]), round(max(limit["x"]), 4)) == (0.1, 0.4)
    assert limit["text"] == ["SLO: 120 s", ""]
    assert limit["line"]["dash"] == "dot"


def test_a_limit_is_drawn_in_the_figure_of_its_statistic_only() -> None:
    specs = drawn({"p95": 300.0})
    kinds = {
        name: {t["meta"]["kind"] for t in specs[name]["data"]} for name in ("jct-mean", "jct-p95")
    }
    assert kinds == {"jct-mean": {"line"}, "jct-p95": {"line", "limit"}}


def test_with_several_limits_the_capacity_is_on_none_of_the_lines() -> None:
    specs = drawn({"mean": 120.0, "p95": 300.0})
    assert line(specs["jct-mean"], "fcfs")["x"] == [0.1, 0.2, 0.245, 0.3]


def test_if_no_rate_is_sustained_with_every_seed_the_lines_have_all_rates() -> None:
    one = capacities(
        chains(fcfs=(0.3, 0.3, NEVER), a=(NEVER,) * 3), dict.fromkeys(STYLE, False), "fcfs"
    )
    spec = drawn({"mean": 120.0}, capacities=one)["jct-mean"]
    assert line(spec, "fcfs")["y"] == [60, 90, 450, 900]
    (limit,) = [t for t in spec["data"] if t["meta"]["kind"] == "limit"]
    assert limit["x"] == [0.1, 0.3]
    assert "Dotted: the SLO's limit." in spec["note"]


def test_if_no_seed_sustains_anything_the_lines_have_all_rates_and_no_capacity() -> None:
    none = capacities(
        chains(fcfs=(NEVER,) * 3, a=(NEVER,) * 3), dict.fromkeys(STYLE, False), "fcfs"
    )
    spec = drawn({"mean": 120.0}, capacities=none)["jct-mean"]
    assert line(spec, "fcfs")["y"] == [60, 90, 450, 900]
    assert all("capacity" not in text for text in line(spec, "fcfs")["text"])


def test_the_rates_of_a_user_are_all_drawn() -> None:
    assert line(drawn({"mean": 120.0}, ends=False)["jct-mean"], "fcfs")["y"] == [60, 90, 450, 900]


def test_the_band_has_a_label_and_covers_rates_that_all_seeds_sustain() -> None:
    spec = drawn({"mean": 120.0}, emphasised=["fcfs", "a"])["jct-mean"]
    assert set(line(spec, "fcfs", "band")["x"]) == {0.1, 0.2}
    assert "Bands: 95% CI of fcfs and a." in spec["note"]


def test_one_seed_has_no_band() -> None:
    nothing = Estimate(60.0, math.nan, math.nan)
    alone = [replace(each, jct_mean_s=nothing) for each in POINTS]
    found = figures(alone, STYLE, ["fcfs"])[0].spec
    assert {trace["meta"]["kind"] for trace in found["data"]} == {"line"}
    assert "Band" not in found["note"]
