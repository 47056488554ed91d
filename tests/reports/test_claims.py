"""Claims of an experiment are judged by intervals over seeds, against cells with known values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError

from reports.experiment.claims import Check
from reports.experiment.judge import Finding, judge
from reports.experiment.significance import ClaimOutcome
from reports.experiment.verdict import outcome_of, verdict
from tests.sentences import mentions

HOLDS, OPEN, FAILS = ClaimOutcome.HOLDS, ClaimOutcome.OPEN, ClaimOutcome.FAILS


def cells(jps: float = 0.1, **jct_s: Sequence[float]) -> pd.DataFrame:
    """Return cells with these mean JCTs, one per seed, of which a tenth is queueing."""
    rows = [
        {
            "variant": name,
            "jps": jps,
            "seed": seed,
            "jct_mean_s": value,
            "queue_mean_s": value / 10,
            "bubble_share": 0.1,
        }
        for name, values in jct_s.items()
        for seed, value in enumerate(values, 1)
    ]
    return pd.DataFrame(rows)


def gains(*ratios: float, jps: float = 0.1) -> pd.DataFrame:
    """Return cells in which ours is faster than fcfs by these factors, one per seed."""
    return cells(jps, fcfs=[r * 10.0 for r in ratios], ours=[10.0] * len(ratios))


SURE = gains(2.0, 2.1, 1.9)
"""The logarithms have the mean 0.690 and the deviation 0.0501, and t is 4.303, so that the
interval of the factor is 2.00 times 0.883 to 1.132."""
UNSURE = gains(2.0, 4.0, 1.0)
"""The geometric mean is 2; the deviation of the logarithms is ln 2, so the half width is 1.72 and
the interval is 0.357 to 11.2."""


def gain(**more: Any) -> Check:
    return Check.model_validate({"says": "gains", "of": "fcfs", "to": "ours", **more})


@pytest.mark.parametrize(
    ("frame", "least", "outcome"),
    [
        (SURE, 1.5, HOLDS),
        (SURE, 1.9, OPEN),
        (SURE, 2.5, FAILS),
        (UNSURE, 1.5, OPEN),
        (UNSURE, 0.3, HOLDS),
        (UNSURE, 12.0, FAILS),
    ],
)
def test_a_claim_is_judged_by_the_interval_and_not_by_the_point(
    frame: pd.DataFrame, least: float, outcome: ClaimOutcome
) -> None:
    assert judge(gain(least=least), {"arm": frame}).outcome is outcome


def test_the_interval_is_students_t_of_the_logarithms_of_ratios_paired_by_seed() -> None:
    (point,) = judge(gain(least=1.0), {"arm": UNSURE}).points
    half = 4.302653 * math.log(2) / math.sqrt(3)
    assert point.value.value == pytest.approx(2.0)
    assert point.value.low == pytest.approx(2 * math.exp(-half))
    assert point.value.high == pytest.approx(2 * math.exp(half))


def test_at_a_rate_at_which_a_side_is_unstable_with_some_seed_a_claim_against_it_is_open() -> None:
    grew = gains(2.0, 2.0, 2.0, jps=0.2).assign(unstable=["", "the backlog grew", "", "", "", ""])
    found = judge(gain(most=3.0), {"arm": pd.concat([SURE.assign(unstable=""), grew])})
    assert found.outcome is OPEN
    point = "fcfs", "0.2 jobs/s", "1 of 3 seeds"
    assert mentions(found.ours, "2.00x", "2 points", "holds at 1", "cannot be said at 1", *point)


def test_a_rate_at_which_another_policy_is_unstable_is_judged() -> None:
    other = cells(third=[5.0] * 3).assign(unstable="the backlog grew")
    frame = pd.concat([SURE.assign(unstable=""), other])
    assert len(judge(gain(most=3.0), {"arm": frame}).points) == 1


def test_a_common_factor_of_a_seed_cancels_in_a_ratio() -> None:
    """Seed 2 draws programs that take a hundred times as long under both."""
    frame = cells(fcfs=[20.0, 2100.0, 19.0], ours=[10.0, 1000.0, 10.0])
    assert judge(gain(least=1.5), {"arm": frame}).outcome is HOLDS


@pytest.mark.parametrize("bounds", [{"least": 1.0}, {"most": 1.0}, {"least": 8.0, "most": 10.0}])
def test_one_seed_says_nothing(bounds: dict[str, float]) -> None:
    found = judge(gain(**bounds), {"arm": gains(9.0)})
    assert (found.outcome, found.ours) == (OPEN, "9.00x (one seed)")


def test_equal_numbers_meet_a_bound_that_equals_them() -> None:
    assert judge(gain(least=1.0), {"arm": gains(1.0, 1.0, 1.0)}).outcome is HOLDS


def test_a_claim_about_every_point_holds_only_if_each_does() -> None:
    arms = {"a": SURE, "b": gains(3.0, 3.1, 2.9)}
    assert judge(gain(least=1.5), arms).outcome is HOLDS
    found = judge(gain(least=1.5), {**arms, "c": UNSURE})
    assert found.outcome is OPEN
    unclear = "cannot be said at 1", "c, 0.1 jobs/s, 2.00x (0.36x to 11.19x)"
    assert mentions(found.ours, "2.00x to 3.00x", "3 points", "holds at 2", *unclear)
    found = judge(gain(least=1.5), {**arms, "c": gains(1.0, 1.01, 0.99)})
    assert found.outcome is FAILS
    assert mentions(found.ours, "not hold at 1", "c, 0.1 jobs/s, 1.00x (0.98x to 1.03x)")


def test_that_one_of_many_points_misses_its_bound_by_chance_does_not_contradict_a_claim() -> None:
    """The interval of the point is 0.960 to 0.998, below 1: the probability of a point as low, if
    the truth were 1, is 0.018, below 0.025. One of twenty must be below 0.025 / 20, and all of
    twenty below 0.025."""
    below = gains(0.979, 0.9868, 0.9713)
    assert judge(gain(least=1.0), {"arm": below}).outcome is FAILS
    others = {f"arm {n}": gains(2.0, 2.0, 2.0) for n in range(19)}
    assert judge(gain(least=1.0), {**others, "arm": below}).outcome is OPEN
    assert judge(gain(least=1.0), dict.fromkeys((*others, "arm"), below)).outcome is FAILS


def test_a_claim_about_some_point_holds_if_one_point_surely_meets_it() -> None:
    arms = {"a": gains(1.0, 1.01, 0.99), "b": gains(3.0, 3.01, 2.99)}
    assert judge(gain(least=2.0, where="some"), arms).outcome is HOLDS
    assert judge(gain(least=4.0, where="some"), arms).outcome is FAILS
    assert judge(gain(least=4.0, where="some"), {**arms, "c": UNSURE}).outcome is OPEN


def test_a_capacity_is_one_number_of_a_seed_whatever_rates_its_cells_ran_at() -> None:
    frame = pd.concat([gains(1.0, 1.0, 1.0), gains(1.0, jps=0.2)])
    per_s = frame["variant"].map({"fcfs": 0.02, "ours": 0.03}) * (1 + frame["seed"] / 100)
    check = Check(says="x", of="ours", to="fcfs", metric="capacity_jobs_per_s", least=1.4)
    found = judge(check, {"arm": frame.assign(capacity_jobs_per_s=per_s)})
    assert (found.outcome, found.ours) == (HOLDS, "1.50x")


def test_a_claim_can_be_restricted_to_loads() -> None:
    arm = pd.concat([SURE, gains(1.0, 1.01, 0.99, jps=0.2)])
    assert judge(gain(least=1.5, loads=[0.1]), {"arm": arm}).outcome is HOLDS
    assert judge(gain(least=1.5, loads=[0.2]), {"arm": arm}).outcome is FAILS


def test_without_a_second_variant_the_metric_itself_is_judged_with_its_unit() -> None:
    arm = {"all": cells(fcfs=[10.0, 10.0, 10.0])}
    found = judge(Check(says="slow", of="fcfs", least=10, most=30), arm)
    assert (found.outcome, found.ours) == (HOLDS, "10 s")
    share = judge(Check(says="waits", of="fcfs", metric="bubble_share", most=0.2), arm)
    assert (share.outcome, share.ours) == (HOLDS, "10%")


def test_values_that_may_be_zero_have_an_arithmetic_mean() -> None:
    frame = cells(fcfs=[0.0, 1.0, 2.0])
    (point,) = judge(Check(says="x", of="fcfs", most=9.0), {"arm": frame}).points
    # The deviation is 1: 1 ± 4.303 / sqrt(3).
    assert (point.value.low, point.value.high) == pytest.approx((-1.484, 3.484), abs=1e-3)


@pytest.mark.parametrize(
    ("ours_s", "printed"), [(10.0, "1.00x"), (10.02, "0.998x"), (10.003, "0.9997x")]
)
def test_a_number_outside_a_bound_is_printed_with_decimals_that_show_it(
    ours_s: float, printed: str
) -> None:
    arm = {"all": cells(fcfs=[10.0] * 3, ours=[ours_s] * 3)}
    assert judge(gain(least=1.0), arm).ours == printed


@pytest.mark.parametrize(
    ("last", "outcome"), [((3.0, 3.1, 2.9), HOLDS), ((2.0, 2.5, 1.7), OPEN), ((1.0,) * 3, FAILS)]
)
def test_rising_is_judged_from_the_first_arm_to_the_last(
    last: Sequence[float], outcome: ClaimOutcome
) -> None:
    arms = {"1": gains(2.0, 2.0, 2.0), "2": gains(1.95, 1.95, 1.95), "3": gains(*last)}
    # A drop of 2.5% from the first arm to the second is tolerated.
    assert judge(gain(where="rising"), arms).outcome is outcome


@pytest.mark.parametrize(("most", "outcome"), [(1.6, HOLDS), (1.5, OPEN), (1.3, FAILS)])
def test_stable_means_that_no_point_is_more_than_the_given_factor_above_another(
    most: float, outcome: ClaimOutcome
) -> None:
    # The factors by seed are 1.5, 1.53 and 1.47: the interval is 1.43 to 1.58.
    arms = {"a": gains(1.0, 1.0, 1.0), "b": gains(1.5, 1.53, 1.47)}
    found = judge(gain(where="stable", most=most), arms)
    assert found.outcome is outcome
    assert found.ours.startswith("1.00x to 1.50x, a factor of 1.50 (1.43 to 1.58)")


def test_an_arm_whose_cells_all_failed_and_an_absent_variant_have_no_result() -> None:
    found = judge(gain(least=1.0), {"arm": pd.DataFrame()})
    assert (found.outcome, found.ours) == (OPEN, "no result")
    assert judge(Check(says="x", of="absent", least=0), {"arm": SURE}).ours == "no result"


@pytest.mark.parametrize(
    ("check", "direction"),
    [
        (gain(), ("mean JCT of fcfs", "÷", "ours", "lower")),
        (gain(metric="throughput_jobs_per_s"), ("throughput of fcfs", "÷", "ours", "higher")),
        (Check(says="x", of="ours", metric="jct_p95_s"), ("P95 JCT of ours", "lower")),
        (Check(says="x", of="ours", metric="jobs"), ("jobs of ours",)),
    ],
)
def test_a_finding_names_the_direction_of_its_number(
    check: Check, direction: tuple[str, ...]
) -> None:
    assert mentions(judge(check, {"arm": SURE}).direction, *direction)


def test_a_check_with_a_misspelt_bound_is_refused() -> None:
    with pytest.raises(ValidationError, match="leest"):
        gain(leest=1.0)


def finding(says: str, outcome: ClaimOutcome, reading: str = "") -> Finding:
    return Finding(says, "2x", "1x", outcome, reading)


def test_a_verdict_gives_the_numbers_of_ours_and_the_paper() -> None:
    assert verdict([finding("A", HOLDS)]) == "Holds: A (1x)."
    fails = verdict([finding("A", HOLDS), finding("B", FAILS), finding("C", OPEN)])
    numbers = "“B”, ours 1x, published 2x", "3 claims 1 hold", "1 cannot be said"
    assert mentions(fails, "Does not hold", *numbers)
    unsure = verdict([finding("A", HOLDS), finding("C", OPEN)])
    assert mentions(unsure, "Cannot be said", "“C”, ours 1x, published 2x", "2 claims 1 hold")
    assert verdict([], "no GPU") == "Not testable here: no GPU"
    assert mentions(verdict([]), "Not testable here", "no checks")


def test_the_outcome_is_that_of_the_worst_claim_under_the_best_interpretation() -> None:
    assert outcome_of([finding("A", HOLDS), finding("B", OPEN)]) is OPEN
    assert outcome_of([finding("A", FAILS), finding("B", OPEN)]) is FAILS
    readings = [finding("A", HOLDS, "one"), finding("A", FAILS, "two")]
    assert outcome_of(readings) is HOLDS
    assert outcome_of([*readings, finding("of both", OPEN)]) is OPEN
    assert outcome_of([]) is None


def test_a_verdict_names_each_interpretation() -> None:
    found = [finding("A", HOLDS, "one"), finding("A", FAILS, "two"), finding("B", HOLDS)]
    one = "“one”: holds", "A (1x) and 1 more"
    two = "“two”: does not hold", "“A”, ours 1x, published 2x", "2 claims 1 hold"
    assert mentions(verdict(found), *one, *two)


AGENTS = {"4 agents": 4.0, "8 agents": 8.0, "16 agents": 16.0}
LATENCY = {
    "4 agents": cells(fcfs=[1.0, 1.0, 1.0]),
    "8 agents": cells(fcfs=[2.0, 11.0, 3.0]),
    "16 agents": cells(fcfs=[30.0, 40.0, 12.0]),
}


def knee(**more: Any) -> Check:
    return Check.model_validate({"says": "knee", "of": "fcfs", "above": 10.0, **more})


def test_a_knee_is_the_position_of_the_first_arm_past_a_number_with_each_seed() -> None:
    # Above 10 s: from 16 agents on with seeds 1 and 3, from 8 on with seed 2.
    finding = judge(knee(least=5, most=30), LATENCY, AGENTS)
    (point,) = finding.points
    assert point.value.value == pytest.approx((16 * 8 * 16) ** (1 / 3))
    assert finding.ours.startswith("12.7 (")
    assert finding.check is not None
    assert finding.check.is_capacity
    assert mentions(finding.direction, "first arm", "mean JCT of fcfs above 10")


def test_a_knee_with_the_same_number_of_agents_for_every_seed_is_within_bounds_that_it_equals() -> (
    None
):
    assert judge(knee(above=11.5, least=16, most=16), LATENCY, AGENTS).outcome is HOLDS
    assert judge(knee(above=11.5, most=14), LATENCY, AGENTS).outcome is FAILS


@pytest.mark.parametrize(
    ("bounds", "outcome"),
    [
        ({"least": 16}, HOLDS),
        ({"most": 12}, FAILS),
        ({"least": 32}, OPEN),  # it may be at 20
        ({"most": 32}, OPEN),
    ],
)
def test_a_knee_that_no_arm_reaches_is_after_the_last_arm(
    bounds: dict[str, float], outcome: ClaimOutcome
) -> None:
    finding = judge(knee(above=50, **bounds), LATENCY, AGENTS)
    assert (finding.ours, finding.outcome) == ("more than 16, the last arm", outcome)
    assert finding.points[0].bounds == finding.ours


@pytest.mark.parametrize(
    ("bounds", "outcome"),
    [({"most": 4}, HOLDS), ({"least": 5}, FAILS), ({"most": 3}, OPEN), ({"least": 2}, OPEN)],
)
def test_a_knee_that_the_first_arm_is_past_is_there_or_before(
    bounds: dict[str, float], outcome: ClaimOutcome
) -> None:
    finding = judge(knee(above=0.5, **bounds), LATENCY, AGENTS)
    assert (finding.ours, finding.outcome) == ("at most 4, the first arm", outcome)


def test_seeds_whose_knee_is_only_bounded_count_with_their_bound() -> None:
    # Above 25 s: from 16 agents on with seeds 1 and 2, with no arm with seed 3. Above 1.5 s with a
    # first arm of 8 agents: from the first arm on.
    finding = judge(knee(above=25, least=5), LATENCY, AGENTS)
    assert mentions(finding.ours, "at least 16 (more than 16", "1 of 3 seeds")
    assert finding.points[0].value.value == pytest.approx(16)
    assert finding.outcome is HOLDS
    assert judge(knee(above=25, least=5, most=30), LATENCY, AGENTS).outcome is OPEN


def test_a_seed_without_a_number_at_an_arm_before_its_knee_is_left_out() -> None:
    # Seed 2, whose knee is at 8 agents, has no result there; seed 1 has none at 4 agents.
    failed = {"4 agents": 1, "8 agents": 2}
    lacking = {
        arm: frame[frame["seed"] != failed.get(arm)].reset_index() for arm, frame in LATENCY.items()
    }
    finding = judge(knee(least=5, most=30), lacking, AGENTS)
    assert finding.points[0].value.value == pytest.approx(16)  # seed 3 alone
    assert finding.ours == "16 (one seed)"
    without = {**LATENCY, "4 agents": LATENCY["4 agents"].head(0)}
    assert judge(knee(least=5, most=30), without, AGENTS).ours == "no result"


def test_an_arm_without_a_steady_state_is_past_a_knee_that_a_number_is_above() -> None:
    # Seed 1 has no steady state with 8 agents, so that its knee is there and not at 16.
    at_8 = LATENCY["8 agents"].assign(unstable=[True, False, False])
    finding = judge(knee(least=5, most=30), {**LATENCY, "8 agents": at_8}, AGENTS)
    assert finding.points[0].value.value == pytest.approx((8 * 8 * 16) ** (1 / 3))


def test_a_knee_of_a_metric_that_falls_is_the_first_arm_below_a_number() -> None:
    falling = dict(zip(AGENTS, reversed(LATENCY.values()), strict=True))
    finding = judge(knee(above=None, below=5.0, least=8, most=16), falling, AGENTS)
    # With seed 2 the 8 agents have 11, which is not below 5.
    assert finding.points[0].value.value == pytest.approx((8 * 16 * 8) ** (1 / 3))


def test_a_number_can_be_divided_by_that_of_another_arm_by_seed() -> None:
    check = Check(says="slower", of="fcfs", over="4 agents", arms=("16 agents",), least=11)
    finding = judge(check, LATENCY)
    assert finding.points[0].value.value == pytest.approx((30 * 40 * 12) ** (1 / 3))
    assert finding.ours.startswith("24.33x (")
    assert mentions(finding.direction, "mean JCT of fcfs ÷", "4 agents", "lower")


def test_a_number_of_jobs_served_is_a_capacity_and_its_ratio_is_none() -> None:
    served = [{"metric": "capacity_jobs_per_s"}, {"metric": "throughput_turns_per_min"}]
    claims = [Check.model_validate({"says": "serves", "of": "fcfs", **each}) for each in served]
    assert [claim.is_capacity for claim in claims] == [True, True]
    for ratio in ({"to": "ours"}, {"over": "4 agents"}):
        assert not any(c.model_copy(update=ratio).is_capacity for c in claims)
    assert not gain().is_capacity


def test_less_than_a_second_is_stated_in_milliseconds() -> None:
    check = Check(says="a token takes 5 ms", of="fcfs")
    assert judge(check, {"": cells(fcfs=[0.0101, 0.0101])}).ours == "10.1 ms"


@pytest.mark.parametrize(
    "fields", [{"above": 1.0, "below": 2.0}, {"above": 1.0, "where": "rising"}]
)
def test_a_knee_has_one_threshold_and_one_number(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="above"):
        Check.model_validate({"says": "knee", "of": "fcfs", **fields})
