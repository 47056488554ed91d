"""Claims of an experiment are judged against cells with known values."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError

from reports.experiment.claims import Check, Finding, judge, verdict


def cells(**means: tuple[float, ...]) -> pd.DataFrame:
    """Return cells with these mean JCTs at 0.1 and 0.2 jobs/s, of which a tenth is queueing."""
    rows = [
        {
            "variant": name,
            "jps": jps,
            "seed": 1,
            "jct_mean_s": value,
            "queue_mean_s": value / 10,
        }
        for name, values in means.items()
        for jps, value in zip((0.1, 0.2), values, strict=False)
    ]
    return pd.DataFrame(rows)


ARM = {"arm": cells(fcfs=(10.0, 30.0), ours=(10.0, 20.0))}
"""The speed-ups of ours over fcfs are 1.00x and 1.50x."""


def gain(**more: Any) -> Check:
    return Check.model_validate({"says": "gains", "of": "fcfs", "to": "ours", **more})


def test_a_claim_about_every_point_fails_if_one_point_misses_it() -> None:
    assert judge(gain(least=1.0), ARM).holds
    found = judge(gain(least=1.2), ARM)
    assert (found.holds, found.ours) == (False, "1.00x to 1.50x; holds at 1 of 2 points")


def test_a_claim_about_some_point_holds_if_one_point_meets_it() -> None:
    assert judge(gain(least=1.2, where="some"), ARM).holds
    assert not judge(gain(least=1.6, where="some"), ARM).holds


def test_an_arm_whose_cells_all_failed_has_no_result() -> None:
    found = judge(gain(least=1.0), {"arm": pd.DataFrame()})
    assert (found.holds, found.ours) == (False, "no result")


def test_both_bounds_count_and_a_claim_can_be_restricted_to_loads() -> None:
    assert judge(gain(least=1.4, most=1.6, loads=[0.2]), ARM).holds
    assert not judge(gain(most=1.4, loads=[0.2]), ARM).holds


def test_without_a_second_variant_the_metric_itself_is_judged_with_its_unit() -> None:
    found = judge(Check(says="slow", of="fcfs", least=10, most=30), ARM)
    assert (found.holds, found.ours) == (True, "10 s to 30 s")
    share = judge(Check(says="waits", of="fcfs", metric="bubble_share", most=0.2), ARM)
    assert (share.holds, share.ours) == (True, "10%")


@pytest.mark.parametrize(
    ("ours_s", "printed"), [(10.0, "1.00x"), (10.02, "0.998x"), (10.003, "0.9997x")]
)
def test_a_number_outside_a_bound_is_printed_with_decimals_that_show_it(
    ours_s: float, printed: str
) -> None:
    arm = {"all": cells(fcfs=(10.0,), ours=(ours_s,))}
    assert judge(gain(least=1.0), arm).ours == printed


def test_seeds_are_averaged_before_anything_is_divided() -> None:
    two = pd.concat([cells(fcfs=(10.0,), ours=(5.0,)), cells(fcfs=(30.0,), ours=(35.0,))])
    # 20 s over 20 s, not the mean of 2x and 0.86x.
    assert judge(gain(least=1.0, most=1.0), {"arm": two}).ours == "1.00x"


def test_rising_is_judged_from_the_first_arm_to_the_last() -> None:
    rising = {
        name: cells(fcfs=(x,), ours=(1.0,)) for name, x in (("1", 2.0), ("2", 1.95), ("3", 3.0))
    }
    found = judge(gain(where="rising"), rising)
    assert (found.holds, found.ours) == (
        True,
        "2.00x → 1.95x → 3.00x",
    )  # a drop of 2.5% is tolerated
    falling = dict(reversed(rising.items()))
    assert not judge(gain(where="rising"), falling).holds


def test_stable_means_within_the_given_factor() -> None:
    assert judge(gain(where="stable", most=1.5), ARM).holds
    assert not judge(gain(where="stable", most=1.4), ARM).holds


def test_a_claim_about_a_variant_without_results_does_not_hold() -> None:
    found = judge(Check(says="x", of="absent", least=0), ARM)
    assert (found.holds, found.ours) == (False, "no result")


def test_a_check_with_a_misspelt_bound_is_refused() -> None:
    with pytest.raises(ValidationError, match="leest"):
        gain(leest=1.0)


def finding(says: str, holds: bool, reading: str = "") -> Finding:
    return Finding(says, "2x", "1x", holds, reading)


def test_a_verdict_gives_the_numbers_of_ours_and_the_paper() -> None:
    assert verdict([finding("A", True)]) == "Reproduced: A (1x)."
    assert verdict([finding("A", True), finding("B", False)]) == (
        "Not reproduced: “B” does not hold, ours 1x, published 2x. 1 of 2 claims hold."
    )
    assert verdict([], "no GPU") == "Not testable here: no GPU"
    assert verdict([]) == "Not testable here: the experiment has no checks"


def test_a_reading_is_reproduced_if_all_of_its_claims_hold() -> None:
    found = [
        finding("A", True, "one"),
        finding("B", True, "one"),
        finding("A", True, "two"),
        finding("B", False, "two"),
    ]
    assert verdict(found) == (
        "Reproduced if read as “one”; not reproduced if read as “two”: “B” does not hold, ours 1x,"
        " published 2x."
    )
    assert verdict(found[2:]).startswith(
        "Not reproduced under any reading; not reproduced if read as “two”"
    )
