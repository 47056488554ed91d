"""The numbers of the fidelity card (docs/design/fidelity.md), for small examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import pytest

from reports.fidelity.distance import CellSpread, Fidelity, fidelity, kendall_tau
from reports.fidelity.targets import judge

Cell = tuple[str, str, int]
"""Policy, load, seed."""
Values = float | tuple[float, float, float]
"""Mean JCT, or mean, P95 and hit ratio."""


def frame(cells: Mapping[Cell, Values], saturated: Sequence[str] = ()) -> pd.DataFrame:
    """Return cells as `reports.metrics.cells.collect` does; P95 defaults to twice the mean."""
    rows = []
    for (variant, load, seed), values in cells.items():
        mean, p95, hits = values if isinstance(values, tuple) else (values, 2 * values, 0.5)
        rows.append(
            {
                "variant": variant,
                "load": load,
                "jps": float(load.split()[0]),
                "seed": seed,
                "jct_mean_s": mean,
                "jct_p95_s": p95,
                "hit_ratio": hits,
                "saturated": load in saturated,
            }
        )
    return pd.DataFrame(rows)


LOAD = "0.5 jobs/s"


def ranked(live: Sequence[Sequence[float]], virtual: Sequence[float]) -> Fidelity:
    """Return the fidelity at one load and seed, given the mean JCTs of policies a, b, c, …."""
    names = [chr(ord("a") + index) for index in range(len(virtual))]

    def cells(values: Sequence[float]) -> dict[Cell, Values]:
        return {(name, LOAD, 1): v for name, v in zip(names, values, strict=True)}

    return fidelity([frame(cells(values)) for values in live], frame(cells(virtual)))


def test_errors_are_signed_relative_to_the_mean_of_repeats_and_averaged_over_seeds() -> None:
    once = frame({("a", LOAD, 1): (9.0, 20.0, 0.50), ("a", LOAD, 2): (20.0, 40.0, 0.60)})
    again = frame({("a", LOAD, 1): (11.0, 20.0, 0.54), ("a", LOAD, 2): (20.0, 40.0, 0.60)})
    virtual = frame({("a", LOAD, 1): (10.5, 18.0, 0.49), ("a", LOAD, 2): (22.0, 44.0, 0.61)})
    (point,) = fidelity([once, again], virtual).points
    # Seed 1: repeats 9 and 11, mean 10, so 10.5 is 5% above; seed 2: 22 is 10% above 20.
    assert point.mean == CellSpread(*map(pytest.approx, (0.075, 0.05, 0.10)))
    # 18 vs. 20, 44 vs. 40.
    assert point.p95 == CellSpread(*map(pytest.approx, (0.0, -0.10, 0.10)))
    # 0.49 - 0.52 and 0.61 - 0.60, in percentage points.
    assert point.hits == CellSpread(*map(pytest.approx, (-1.0, -3.0, 1.0)))
    # 9 and 11 differ by 2, a fifth of their mean; seed 2 did not change.
    assert point.mean_spread == CellSpread(*map(pytest.approx, (0.10, 0.0, 0.20)))
    assert point.hits_spread == CellSpread(*map(pytest.approx, (2.0, 0.0, 4.0)))
    assert (point.live_s, point.virtual_s) == (15.0, 16.25)


def test_one_run_of_a_cell_has_no_spread() -> None:
    found = ranked([[1.0, 2.0]], [1.0, 2.0])
    assert math.isnan(found.points[0].mean_spread.value)
    assert math.isnan(found.rankings[0].tau_live)
    assert found.rankings[0].settled is None


@pytest.mark.parametrize(
    ("one", "other", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [2, 1, 3, 4], (5 - 1) / 6),  # one of six pairs the other way round
        ([1, 2, 3], [1, 1, 2], 2 / math.sqrt(3 * 2)),  # tau-b: one pair tied on one side
        ([1, 2], [3, 3], math.nan),
    ],
)
def test_kendall_tau(one: list[float], other: list[float], tau: float) -> None:
    assert kendall_tau(one, other) == pytest.approx(tau, nan_ok=True)


def test_the_regret_is_what_choosing_by_virtual_time_costs() -> None:
    (ranking,) = ranked([[10.0, 11.0, 20.0]], [12.0, 11.0, 30.0]).rankings
    assert (ranking.live, ranking.virtual) == (("a", "b", "c"), ("b", "a", "c"))
    assert not ranking.same_winner
    assert ranking.regret == pytest.approx(0.1)  # b takes 11 where a takes 10
    assert ranking.tau == pytest.approx((2 - 1) / 3)


def test_a_tie_in_virtual_time_contains_the_winner_and_costs_what_the_worse_one_does() -> None:
    (ranking,) = ranked([[10.0, 12.0, 20.0]], [11.0, 11.0, 30.0]).rankings
    assert ranking.same_winner
    assert ranking.regret == pytest.approx(0.2)


def test_pairs_are_settled_where_every_repeat_of_every_seed_orders_them_alike() -> None:
    # b and c change places between repeats, a is always best: two of three pairs are settled.
    (ranking,) = ranked([[1.0, 5.0, 6.0], [1.0, 6.0, 5.0]], [1.0, 7.0, 0.5]).rankings
    assert (ranking.settled, ranking.pairs) == (2, 3)
    assert ranking.agreed == 1  # a before b; a before c is the other way round
    assert ranking.tau_live == pytest.approx((2 - 1) / 3)


def test_a_seed_that_one_policy_lacks_does_not_count_in_the_ranking() -> None:
    live = frame({("a", LOAD, 1): 1.0, ("b", LOAD, 1): 2.0, ("a", LOAD, 2): 9.0})
    virtual = frame({("a", LOAD, 1): 1.0, ("b", LOAD, 1): 2.0, ("a", LOAD, 2): 9.0})
    found = fidelity([live], virtual)
    assert found.rankings[0].live == ("a", "b")  # over both seeds a would be the worse
    assert len(found.cells) == 3


def test_cells_that_one_of_the_runs_lacks_are_left_out() -> None:
    live = frame({("a", LOAD, 1): 1.0})
    virtual = frame({("a", LOAD, 1): 1.0, ("b", LOAD, 1): 2.0})
    found = fidelity([live], virtual)
    assert list(found.cells["variant"]) == ["a"]
    assert found.rankings[0].pairs == 0


def three_rates(factor: float = 1.0, saturated: Sequence[str] = ("2 jobs/s",)) -> Fidelity:
    cells: dict[Cell, Values] = {
        (name, f"{jps:g} jobs/s", 1): jct * (1 + jps)
        for jps in (0.2, 0.5, 2)
        for name, jct in (("a", 10.0), ("b", 20.0))
    }
    virtual = {key: float(str(value)) * factor for key, value in cells.items()}
    return fidelity([frame(cells, saturated), frame(cells, saturated)], frame(virtual))


def held(found: Fidelity, invalid: int = 0) -> list[bool | None]:
    return [check.held for check in judge(found, invalid).checks]


def test_exact_virtual_times_meet_all_targets() -> None:
    verdict = judge(three_rates(), 0)
    assert verdict.good
    assert verdict.checks[4].found == "3 loads, past saturation 2 jobs/s"


@pytest.mark.parametrize(
    ("found", "invalid", "missed"),
    [
        (three_rates(1.049), 0, []),
        (three_rates(1.06), 0, [0]),
        (three_rates(0.91), 0, [0, 1]),
        (three_rates(saturated=()), 0, [4]),
        (three_rates(), 1, [5]),
        (ranked([[1.0, 1.01], [1.0, 1.01]], [1.01, 1.0]), 0, [2, 3, 4]),
        (ranked([[1.0, 1.01], [1.0, 1.01]], [1.0, 1.0]), 0, [3, 4]),
    ],
)
def test_each_target_can_be_missed_separately(
    found: Fidelity, invalid: int, missed: list[int]
) -> None:
    assert [index for index, good in enumerate(held(found, invalid)) if good is False] == missed


def test_one_policy_has_no_winner_to_judge() -> None:
    assert held(ranked([[1.0]], [1.0]))[2:4] == [None, None]


def test_a_load_at_which_no_policies_differ_has_no_ranking_to_judge() -> None:
    # In live repeats each is faster once; in virtual time both take equally long.
    found = ranked([[1.0, 1.01], [1.01, 1.0]], [1.0, 1.0])
    assert (found.rankings[0].settled, held(found)[3]) == (0, None)


def test_the_verdict_names_the_largest_error() -> None:
    found = ranked([[10.0, 20.0]], [10.1, 18.0])
    assert judge(found, 0).checks[0].found == "1 of 2; worst -10.0%, b at 0.5 jobs/s"
