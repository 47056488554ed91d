"""The search of a sweep: which cells run in which order, and that it ends with all capacities."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.capacity.estimate import Kind, Outcome
from reports.capacity.search import Chain, Idle, Search, SearchPlace
from reports.loads import RATES

SEEDS = (1, 2, 3)
VARIANTS = ("fcfs", "continuum", "autellix")
IDLE = {seed: Idle(50.0, 0.5) for seed in SEEDS}
LIMITS = {"fcfs": 0.4, "continuum": 0.9, "autellix": 0.35}
OF_SEED = {1: 1.0, 2: 1.1, 3: 0.93}
SEARCH = Search(VARIANTS, "fcfs", SEEDS)


def tightest(place: SearchPlace, limits: Mapping[str, float] = LIMITS) -> float | None:
    """Return idle ÷ (1 - load^4): the SLO is met up to 0.84 of the limit."""
    load = (place.load / limits[place.variant] / OF_SEED[place.seed]) ** 4
    return 0.5 / (1 - load) if load < 0.9 else None


Known = dict[Chain, dict[float, Outcome]]


def add(known: Known, place: SearchPlace, limits: Mapping[str, float] = LIMITS) -> None:
    chain = Chain(place.variant, place.seed)
    known.setdefault(chain, {})[place.load] = Outcome(place.load, tightest(place, limits))


def run(
    search: Search = SEARCH, limits: Mapping[str, float] = LIMITS
) -> tuple[Known, list[list[SearchPlace]]]:
    known: Known = {}
    for jps in search.given:
        for variant in search.variants:
            for seed in search.seeds:
                add(known, SearchPlace(variant, jps, seed), limits)
    rounds: list[list[SearchPlace]] = []
    while places := search.next_cells(known, IDLE):
        assert len(set(places)) == len(places)
        rounds.append(places)
        for place in places:
            add(known, place, limits)
        assert len(rounds) < 40
    return known, rounds


def test_every_capacity_is_found() -> None:
    known, _ = run()
    for variant in VARIANTS:
        for seed in SEEDS:
            found = SEARCH.capacity_of(known[Chain(variant, seed)].values(), IDLE[seed])
            truth = LIMITS[variant] * OF_SEED[seed] * 0.5**0.25
            assert found.kind is Kind.FOUND
            assert found.load == pytest.approx(truth, rel=0.01)


def test_the_baseline_comes_first_then_the_common_rates_of_all_then_the_other_searches() -> None:
    _, rounds = run()
    common = next(i for i, places in enumerate(rounds) if {p.variant for p in places} != {"fcfs"})
    assert all(p.variant == "fcfs" for places in rounds[:common] for p in places)
    assert {p.variant for places in rounds[common + 1 :] for p in places} <= {
        "continuum",
        "autellix",
    }
    # The geometric mean of fcfs: 0.4 · 0.5^0.25 · (1 · 1.1 · 0.93)^(1/3) = 0.3389.
    rates = sorted({p.load for p in rounds[common]})
    assert rates == pytest.approx([share * 0.3389 for share in (0.85, 1.2)], rel=0.03)
    assert rates == [RATES.nearest_rung(jps) for jps in rates]


def test_the_seeds_with_the_fewest_cells_come_first_so_that_they_end_together() -> None:
    known: Known = {}
    first, *_ = SEARCH.next_cells(known, IDLE)
    add(known, first)
    assert [place.seed for place in SEARCH.next_cells(known, IDLE)] == [2, 3, 1]


def test_all_variants_have_all_seeds_at_the_common_rates() -> None:
    known, _ = run()
    rates = SEARCH.common_rates(known, IDLE)
    assert len(rates) == 2
    assert all(jps in known[Chain(v, seed)] for v in VARIANTS for seed in SEEDS for jps in rates)


def test_only_those_with_room_at_all_lower_shares_run_at_1_8_times_the_baselines_capacity() -> None:
    """The mean capacity of fcfs is 0.3389 and that of continuum 0.9 · 0.5^0.25 = 0.757, which is
    2.2 times as much; autellix sustains 0.35 · 0.5^0.25 = 0.294."""
    known, _ = run()
    rates = SEARCH.higher_rates(known, IDLE)
    assert rates == pytest.approx([1.8 * 0.3389], rel=0.03)
    for seed in SEEDS:
        assert known[Chain("continuum", seed)].keys() >= set(rates)
        assert max(known[Chain("autellix", seed)]) < rates[0]


def test_a_seed_without_room_below_its_limit_runs_at_no_higher_rate() -> None:
    """The limit of continuum is 1.3 times that of fcfs. At 1.2 times the mean capacity, 0.41, its
    JCT is 0.5 ÷ (1 - (0.41 ÷ 0.52)^4) = 0.81 of the SLO with seed 1, and less with seed 2, of which
    all is 1.1 times as much."""
    limits = {**LIMITS, "continuum": 0.4 * 1.3}
    known, _ = run(limits=limits)
    (high,) = SEARCH.higher_rates(known, IDLE)
    ran = {seed: known[Chain("continuum", seed)].keys() & {high} for seed in (1, 2)}
    assert ran == {1: set(), 2: {high}}
    found = SEARCH.capacity_of(known[Chain("continuum", 1)].values(), IDLE[1])
    assert found.load == pytest.approx(0.4 * 1.3 * 0.5**0.25, rel=0.01)


def test_the_cells_of_a_search_are_few() -> None:
    known, rounds = run()
    # A search starts at 2 jobs ÷ 50 s = 0.04 jobs/s, since machines sustain less for a day. Up to
    # the limits here, which are ten times as high, a seed takes one cell more than from 4 jobs.
    assert sum(len(outcomes) for outcomes in known.values()) <= 10 * 3 + 9 * 3
    assert len(rounds) <= 14


def test_a_users_rates_run_alone_beside_the_searches_and_narrow_them() -> None:
    search = Search(VARIANTS, "fcfs", SEEDS, given=(0.3, 0.9))
    known, rounds = run(search)
    assert search.common_rates(known, IDLE) == (0.3, 0.9)
    assert search.higher_rates(known, IDLE) == ()
    for chain, outcomes in known.items():
        assert SEARCH.capacity_of(outcomes.values(), IDLE[chain.seed]).kind is Kind.FOUND
    assert all(0.3 < p.load < 0.9 for places in rounds for p in places if p.variant != "autellix")


@given(st.data())
def test_a_search_resumed_from_any_finished_cells_ends_with_the_same_cells(
    data: st.DataObject,
) -> None:
    known, rounds = run()
    cells = [place for places in rounds for place in places]
    kept = data.draw(st.sets(st.sampled_from(cells)))
    again: Known = {}
    for place in kept:
        add(again, place)
    while places := SEARCH.next_cells(again, IDLE):
        assert not kept & set(places)
        for place in places:
            add(again, place)
    assert again == known


def test_a_failed_cell_of_the_baseline_ends_the_searches_of_all() -> None:
    known: Known = {}
    failed: set[SearchPlace] = set()
    while places := SEARCH.next_cells(known, IDLE, failed):
        assert {place.variant for place in places} == {"fcfs"}
        for place in places:
            if place.seed == 2:
                failed.add(place)
            else:
                add(known, place)
    assert len(failed) == 1
    assert SEARCH.capacity_of(known[Chain("fcfs", 1)].values(), IDLE[1]).kind is Kind.FOUND


def test_a_failed_cell_ends_its_search_and_no_other() -> None:
    known: Known = {}
    failed: set[SearchPlace] = set()
    while places := SEARCH.next_cells(known, IDLE, failed):
        for place in places:
            if place.variant == "continuum" and place.seed == 2:
                failed.add(place)
            else:
                add(known, place)
    assert {place.seed for place in failed} == {2}
    found = {
        chain: SEARCH.capacity_of(outcomes.values(), IDLE[chain.seed]).kind
        for chain, outcomes in known.items()
    }
    assert len(found) == 8
    assert set(found.values()) == {Kind.FOUND}


def test_an_slo_that_an_idle_machine_does_not_meet_runs_no_cells() -> None:
    idle = {seed: Idle(50.0, 1.2) for seed in SEEDS}
    assert SEARCH.next_cells({}, idle) == []
    assert SEARCH.capacity_of([], idle[1]).kind is Kind.NEVER


def test_others_are_searched_even_if_the_baseline_sustains_nothing() -> None:
    known, _ = run(limits={**LIMITS, "fcfs": 1e-6})
    assert SEARCH.capacity_of(known[Chain("fcfs", 1)].values(), IDLE[1]).kind is Kind.NEVER
    assert SEARCH.capacity_of(known[Chain("continuum", 1)].values(), IDLE[1]).kind is Kind.FOUND
    assert SEARCH.common_rates(known, IDLE) == ()
