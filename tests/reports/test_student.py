"""Student's t distribution: values that have a formula, and SciPy's for all others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr, stdtrit

from reports.statistics.student import probability_below, quantile

DEGREES = st.integers(1, 200)
RELATIVE = 1e-12


@pytest.mark.parametrize("probability", [0.6, 0.975, 0.9995])
def test_quantiles_of_one_and_two_degrees_have_formulas(probability: float) -> None:
    tangent = math.tan(math.pi * (probability - 0.5))
    assert quantile(1, probability) == pytest.approx(tangent, rel=RELATIVE)
    root = (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    assert quantile(2, probability) == pytest.approx(root, rel=RELATIVE)


@pytest.mark.parametrize("degrees", [1, 2, 23])
def test_half_of_the_values_are_negative(degrees: int) -> None:
    assert quantile(degrees, 0.5) == 0
    assert probability_below(degrees, 0.0) == 0.5
    assert quantile(degrees, 0.025) == pytest.approx(-quantile(degrees, 0.975), rel=RELATIVE)


def test_a_tail_of_one_degree_is_an_arctangent_however_small() -> None:
    expected = math.atan(1e-9) / math.pi
    assert probability_below(1, -1e9) == pytest.approx(expected, rel=RELATIVE)


@given(DEGREES, st.floats(0.55, 1 - 1e-6))
def test_quantiles_are_those_of_scipy(degrees: int, probability: float) -> None:
    expected = float(stdtrit(degrees, probability))
    assert quantile(degrees, probability) == pytest.approx(expected, rel=RELATIVE)


@given(DEGREES, st.floats(-60, 60))
def test_probabilities_are_those_of_scipy(degrees: int, t: float) -> None:
    expected = float(stdtr(degrees, t))
    assert probability_below(degrees, t) == pytest.approx(expected, rel=RELATIVE, abs=1e-300)
