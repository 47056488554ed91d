"""The picture of capacities: the highest on top, intervals where there are several seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from reports.capacity.estimate import Capacity, Kind
from reports.figures.capacity import capacity
from reports.figures.styles import Style
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import VariantCapacity
from tests.sentences import mentions

STYLE = {name: Style(slot, "circle", "solid") for slot, name in enumerate(("fcfs", "a", "none"))}


def of(name: str, *per_seed: float, ratio: Estimate | None = None) -> VariantCapacity:
    kinds = [Kind.NEVER if math.isnan(value) else Kind.FOUND for value in per_seed]
    by_seed = {
        seed: Capacity(kind, value, None, None)
        for seed, (kind, value) in enumerate(zip(kinds, per_seed, strict=True), start=1)
    }
    return VariantCapacity(name, "", by_seed, ratio)


def test_the_highest_capacity_is_on_top() -> None:
    figure = capacity([of("fcfs", 0.2, 0.2), of("a", 0.3, 0.3)], STYLE, ["a"])
    assert figure is not None
    assert [name for name, _ in figure.spec["rows"]] == ["a", "fcfs"]
    assert mentions(figure.spec["alt"], "jobs per second", "0.2 (fcfs)", "0.3 (a)")


def test_bars_are_the_interval_over_seeds() -> None:
    # Logs ±0.1 around 0: deviation 0.1414, times t = 12.706 (one degree of freedom), over √2.
    figure = capacity([of("a", math.exp(0.1), math.exp(-0.1))], STYLE, [])
    assert figure is not None
    bar = figure.spec["data"][0]["error_x"]
    assert bar["array"] == [pytest.approx(math.exp(1.2706) - 1, rel=1e-3)]
    assert bar["arrayminus"] == [pytest.approx(1 - math.exp(-1.2706), rel=1e-3)]


@pytest.mark.parametrize("loads", [(0.3,), (0.2, 0.02)])
def test_one_seed_has_no_bar_nor_have_two_seeds_that_are_far_apart(loads: Sequence[float]) -> None:
    figure = capacity([of("a", *loads)], STYLE, [])
    assert figure is not None
    assert "error_x" not in figure.spec["data"][0]


def test_a_capacity_that_is_no_number_is_named_below_the_figure() -> None:
    figure = capacity([of("a", 0.3), of("none", math.nan)], STYLE, [])
    assert figure is not None
    assert figure.spec["note"] == "Without a number: none (never)"
    assert len(figure.spec["data"]) == 1
    assert capacity([of("none", math.nan)], STYLE, []) is None


def test_names_have_values_and_those_that_tie_are_bold_and_the_figure_says_so() -> None:
    found = [of("fcfs", 0.2, 0.2), of("a", 0.3, 0.3)]
    figure = capacity(found, STYLE, ["a"], winners=["a", "fcfs"])
    assert figure is not None
    assert [label for _, label in figure.spec["rows"]] == ["<b>a</b>  0.3", "<b>fcfs</b>  0.2"]
    assert figure.spec["note"].startswith("Bold: not distinguished from the highest")
    alone = capacity(found, STYLE, ["a"], winners=["a"])
    assert alone is not None
    assert [label for _, label in alone.spec["rows"]] == ["<b>a</b>  0.3", "fcfs  0.2"]
    assert "Bold" not in alone.spec["note"]
