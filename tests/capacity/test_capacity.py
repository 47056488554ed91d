"""The capacity of one variant and seed, from cells at some rates."""

from __future__ import annotations

import math

import pytest

from reports.capacity.estimate import Kind, Outcome, capacity
from reports.loads import AGENTS, RATES, Ends, ladder_of

ENDS = Ends(RATES, -100, 100)


def at(k: int, tightest: float | None) -> Outcome:
    return Outcome(RATES.rung(k), tightest)


def test_rungs_are_five_percent_apart_and_have_four_digits() -> None:
    assert [RATES.rung(k) for k in (-30, -1, 0, 1, 2, 30)] == [
        0.2314,
        0.9524,
        1.0,
        1.05,
        1.103,
        4.322,
    ]


@pytest.mark.parametrize("k", range(-400, 200, 7))
def test_the_position_of_a_rung_is_its_number(k: int) -> None:
    assert RATES.position(RATES.rung(k)) == k
    assert RATES.nearest_rung(RATES.rung(k) * 1.02) == RATES.rung(k)


def test_a_search_ends_where_jobs_hardly_meet_and_where_a_cell_is_too_long() -> None:
    # 100 s: 0.02 jobs in the system are 0.0002 jobs/s; 4,096 are 40.96 jobs/s.
    ends = RATES.ends(100)
    assert RATES.rung(ends.lowest) <= 0.0002 < RATES.rung(ends.lowest + 1)
    assert RATES.rung(ends.highest - 1) < 40.96 <= RATES.rung(ends.highest)


def test_between_neighbouring_rungs_the_tightest_ratio_is_interpolated_on_log_axes() -> None:
    # From 0.9 to 1/0.9 over one rung, 1 is in the middle: 1.05^0.5.
    found = capacity([at(0, 0.9), at(1, 1 / 0.9)], ENDS)
    assert found.kind is Kind.FOUND
    assert found.load == pytest.approx(1.05**0.5)
    # From 0.8 to 0.8^-3, 1 is at a quarter of the way.
    found = capacity([at(0, 0.8), at(1, 0.8**-3)], ENDS)
    assert found.load == pytest.approx(1.05**0.25)


def test_the_capacity_is_the_rate_itself_if_the_slo_is_met_exactly_there() -> None:
    assert capacity([at(0, 1.0), at(1, 1.4)], ENDS).load == 1.0


def test_an_unstable_cell_has_no_value_so_the_capacity_is_in_the_middle() -> None:
    found = capacity([at(0, 0.7), at(1, None)], ENDS)
    assert (found.sustained, found.not_sustained) == (1.0, 1.05)
    assert found.load == pytest.approx(math.sqrt(1.05))


def test_rates_between_which_a_rung_was_not_run_leave_the_capacity_open() -> None:
    found = capacity([at(0, 0.7), at(2, 1.4)], ENDS)
    assert (found.kind, found.sustained, found.not_sustained) == (Kind.OPEN, 1.0, 1.103)
    assert math.isnan(found.load)
    assert capacity([at(0, 0.7)], ENDS).kind is Kind.OPEN
    assert capacity([at(0, None)], ENDS).kind is Kind.OPEN
    assert capacity([], ENDS).kind is Kind.OPEN


def test_rates_off_the_ladder_count_too() -> None:
    # No rung is between 1.01 and 1.04.
    assert capacity([Outcome(1.01, 0.9), Outcome(1.04, 1.1)], ENDS).kind is Kind.FOUND
    assert capacity([Outcome(1.01, 0.9), Outcome(1.06, 1.2)], ENDS).kind is Kind.OPEN


def test_close_rates_at_which_the_slo_is_nearly_met_need_no_rung_between_them() -> None:
    """ln(1 / 0.94) = 0.0619 and ln(1.04) = 0.0392, so the crossing is 61% of the way from 1."""
    found = capacity([at(0, 0.94), at(2, 1.04)], ENDS)
    assert found.kind is Kind.FOUND
    assert found.load == pytest.approx(1.05 ** (2 * 0.612), rel=1e-3)
    for above in at(2, 1.13), at(3, 1.04), at(2, None):
        assert capacity([at(0, 0.94), above], ENDS).kind is Kind.OPEN
    assert capacity([at(0, 0.88), at(2, 1.04)], ENDS).kind is Kind.OPEN


def test_an_unsustained_rate_ends_the_search_even_if_a_higher_one_seems_to_be_sustained() -> None:
    outcomes = [at(0, 0.7), at(1, None), at(2, 0.9), at(3, 1.2)]
    assert capacity(outcomes, ENDS).not_sustained == RATES.rung(1)


def test_never_sustained_is_no_number() -> None:
    found = capacity([at(-100, 1.2), at(0, 5.0)], ENDS)
    assert found.kind is Kind.NEVER
    assert math.isnan(found.load)


def test_always_sustained_names_the_highest_rate_that_was_tried() -> None:
    found = capacity([at(0, 0.4), at(100, 0.9)], ENDS)
    assert (found.kind, found.sustained) == (Kind.ALWAYS, RATES.rung(100))
    assert math.isnan(found.load)


def test_agents_are_whole_numbers_all_up_to_40_and_then_5_percent_apart() -> None:
    ladder = [AGENTS.rung(k) for k in range(45)]
    assert ladder[:40] == list(range(1, 41))
    assert ladder[39:] == [40, 42, 44, 46, 48, 50]  # 40 · 1.05 = 42, 42 · 1.05 = 44.1, …
    assert all(AGENTS.position(agents) == k for k, agents in enumerate(ladder))
    assert AGENTS.ends(100.0).lowest_load == 1


def test_between_two_numbers_of_agents_positions_are_logarithmic() -> None:
    assert AGENTS.position(math.sqrt(10 * 11)) == pytest.approx(9.5)
    assert AGENTS.nearest_rung(10.4) == 10
    assert AGENTS.nearest_rung(0.3) == 1


@pytest.mark.parametrize(
    ("arrivals", "load", "label"),
    [
        ("poisson", 0.02569, "0.02569 jobs/s"),
        ("agents", 16, "16 agents"),
        ("agents:60", 1, "1 agent"),
    ],
)
def test_a_load_is_a_rate_or_a_number_of_agents(arrivals: str, load: float, label: str) -> None:
    assert ladder_of(arrivals).label(load) == label


@pytest.mark.parametrize(
    ("agents", "text"), [(1, "1 agent"), (4.36, "4.36 agents"), (1234.5, "1,234 agents")]
)
def test_a_number_of_agents_is_written_without_an_exponent(agents: float, text: str) -> None:
    assert AGENTS.text(agents) == text


def test_the_ladder_of_agents_ends_at_4096() -> None:
    assert AGENTS.ends(1.0).highest_load == 4096


def test_a_capacity_names_the_limit_that_the_next_load_misses() -> None:
    below = Outcome(RATES.rung(0), 0.9, "ttft_p95<=5s")
    late = Outcome(RATES.rung(1), 1.1, "ttft_p95<=5s")
    assert capacity([below, late], ENDS).limit == "ttft_p95<=5s"
    assert capacity([below, Outcome(RATES.rung(1), None)], ENDS).limit == ""
