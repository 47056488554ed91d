"""The search for the capacity of one variant and seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.capacity.chain import next_load
from reports.capacity.estimate import Capacity, Kind, Outcome
from reports.loads import AGENTS, RATES, Ends

IDLE_S = 50.0
ENDS = RATES.ends(IDLE_S)
IDLE = 0.5
"""The tightest ratio of mean<=2x on an idle machine."""
Machine = Callable[[float], float | None]
"""The tightest ratio at a rate; None where the machine is unstable."""


def queue(limit: float, sharpness: float, unstable_from: float = 5.0) -> Machine:
    """Return a machine whose JCT grows like 1 / (1 - load^sharpness)."""

    def tightest(jps: float) -> float | None:
        load = (jps / limit) ** sharpness
        found = IDLE / (1 - load) if load < 1 else math.inf
        return found if found < unstable_from else None

    return tightest


def cliff(limit: float) -> Machine:
    """Return a machine that is as fast as an idle one up to a rate, and unstable from there on."""
    return lambda jps: IDLE if jps < limit else None


def search(
    machine: Machine, start: float, given: Iterable[float] = (), ends: Ends = ENDS
) -> tuple[Capacity, list[float]]:
    """Return the capacity, and the rates in the order in which they ran."""
    ran = list(given)
    known = {jps: Outcome(jps, machine(jps)) for jps in ran}
    while not isinstance(found := next_load(known, tuple(given), start, ends, IDLE), Capacity):
        assert found not in known
        ran.append(found)
        known[found] = Outcome(found, machine(found))
    return found, ran


SOME_RATES = st.floats(0.01, 10)
MACHINES = st.one_of(
    st.builds(queue, SOME_RATES, st.floats(0.5, 12), st.floats(1.01, 5)),
    st.builds(cliff, SOME_RATES),
)


def is_located(found: Capacity, machine: Machine) -> bool:
    """Return whether the SLO is nearly met at both ends, which are less than 11% apart."""
    below, above = machine(found.sustained or 0), machine(found.not_sustained or 0)
    near = below is not None and above is not None and above / 1.12 <= 1 <= below * 1.12
    return near and (found.not_sustained or 0) <= 1.11 * (found.sustained or 0)


@given(MACHINES, SOME_RATES, st.lists(SOME_RATES, max_size=4, unique=True))
def test_every_search_ends_at_close_rates_around_the_capacity(
    machine: Machine, start: float, given: list[float]
) -> None:
    found, ran = search(machine, start, given)
    assert found.kind is Kind.FOUND
    assert found.sustained is not None
    assert found.not_sustained is not None
    assert Outcome(found.sustained, machine(found.sustained)).sustained
    assert not Outcome(found.not_sustained, machine(found.not_sustained)).sustained
    assert found.not_sustained <= found.sustained * 1.051 or is_located(found, machine)
    assert found.sustained <= found.load <= found.not_sustained
    assert len(ran) <= len(given) + 23


def test_a_search_that_starts_near_the_capacity_needs_few_cells() -> None:
    """Seeds differ by a quarter in the JCT at the knee, and by less in the capacity."""
    needed = [
        len(search(queue(1.0, sharpness), start)[1])
        for sharpness in (2, 4, 8)
        for start in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
    ]
    assert max(needed) <= 6
    assert sum(needed) / len(needed) <= 4.2


def test_a_search_that_starts_far_away_needs_not_many_more() -> None:
    # Four jobs in the system; the capacity is that of 1 to 200 jobs in the system.
    needed = [
        len(search(queue(jobs / IDLE_S, sharpness), 4 / IDLE_S)[1])
        for jobs in (1, 5, 20, 60, 200)
        for sharpness in (2, 4, 8)
    ]
    assert max(needed) <= 11


@given(MACHINES, SOME_RATES, st.data())
def test_a_search_resumed_from_any_finished_cells_runs_no_other_cells(
    machine: Machine, start: float, data: st.DataObject
) -> None:
    found, ran = search(machine, start)
    kept = data.draw(st.sets(st.sampled_from(ran)))
    known = {jps: Outcome(jps, machine(jps)) for jps in kept}
    again: list[float] = []
    while not isinstance(after := next_load(known, (), start, ENDS, IDLE), Capacity):
        again.append(after)
        known[after] = Outcome(after, machine(after))
    assert after == found
    assert sorted([*kept, *again]) == sorted(ran)


@given(MACHINES, SOME_RATES, st.sets(SOME_RATES, max_size=5))
def test_cells_that_the_search_did_not_ask_for_do_not_change_it(
    machine: Machine, start: float, others: set[float]
) -> None:
    found, ran = search(machine, start)
    known = {jps: Outcome(jps, machine(jps)) for jps in {*others, *ran}}
    assert next_load(known, (), start, ENDS, IDLE) == found


def test_rates_that_run_in_any_case_narrow_the_search() -> None:
    machine = queue(1.0, 4)
    _, ran = search(machine, 0.02, given=(0.8, 0.9))
    # 0.84 meets the SLO exactly: 0.5 = 0.84^4.
    assert all(0.8 < jps < 0.9 for jps in ran[2:])
    assert len(ran) <= 5


def test_a_statistic_that_hardly_grows_until_its_limit_is_passed_in_long_strides() -> None:
    """Such as the time per output token: 95% of its limit on an idle machine, 100% with 120."""

    def machine(agents: float) -> float | None:
        return 0.95 * agents**0.0107

    known: dict[float, Outcome] = {}
    ends = AGENTS.ends(IDLE_S)
    while not isinstance(found := next_load(known, (), 4, ends, 0.95), Capacity):
        known[found] = Outcome(found, machine(found))
    assert found.load == pytest.approx(120, rel=0.05)
    assert len(known) <= 14


def test_a_machine_that_sustains_everything_is_tried_up_to_the_highest_rate() -> None:
    found, ran = search(lambda _: IDLE, 0.1)
    assert (found.kind, found.sustained) == (Kind.ALWAYS, RATES.rung(ENDS.highest))
    assert len(ran) <= 12


@pytest.mark.parametrize("tightest", [1.01, None])
def test_a_machine_that_sustains_nothing_is_tried_down_to_the_lowest_rate(
    tightest: float | None,
) -> None:
    found, ran = search(lambda _: tightest, 0.1)
    assert (found.kind, found.not_sustained) == (Kind.NEVER, RATES.rung(ENDS.lowest))
    assert len(ran) <= 12


def test_outcomes_that_are_not_monotone_end_at_the_first_rate_that_is_not_sustained() -> None:
    """A mean of few jobs may meet the SLO by luck above a rate at which it does not."""
    lucky = round(RATES.position(1.0))

    def machine(jps: float) -> float | None:
        return 0.9 if jps == RATES.rung(lucky) else queue(0.9, 4)(jps)

    found, _ = search(machine, 1.0)
    assert found.kind is Kind.FOUND
    assert found.load in (pytest.approx(0.9 * 0.5**0.25, rel=0.05), pytest.approx(1, 0.06))


@given(st.floats(1.5, 1000), st.floats(0.5, 12), st.floats(1, 1000))
def test_a_search_for_agents_tries_whole_numbers_and_ends_at_neighbours(
    limit: float, sharpness: float, start: float
) -> None:
    machine = queue(limit, sharpness)
    found, ran = search(machine, start, ends=AGENTS.ends(IDLE_S))
    assert all(agents == round(agents) for agents in ran)
    if found.kind is Kind.NEVER:
        assert found.not_sustained == 1
        return
    assert found.kind is Kind.FOUND
    assert found.sustained is not None
    assert found.not_sustained is not None
    assert found.not_sustained - found.sustained <= max(1, 0.051 * found.sustained)
    assert found.sustained <= found.load <= found.not_sustained
    assert len(ran) <= 22
