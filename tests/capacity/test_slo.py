"""`--slo`: what it accepts, what it says of the rest, and when it is met."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reports.capacity.slo import STATISTICS, Limit, parse_slo
from servers.basics.errors import InvalidInput
from servers.records.done import Jct

IDLE_S = Jct(mean=40.0, p50=30.0, p90=80.0, p95=100.0, p99=150.0)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("mean<=2x", (Limit("mean", 2, "x"),)),
        ("p95<=300s", (Limit("p95", 300, "s"),)),
        ("P99<=5min", (Limit("p99", 5, "min"),)),
        ("p50 <= 1.5x , mean<=0.5h", (Limit("p50", 1.5, "x"), Limit("mean", 0.5, "h"))),
    ],
)
def test_an_slo_is_a_list_of_limits(text: str, limits: tuple[Limit, ...]) -> None:
    assert parse_slo(text).limits == limits


def test_the_text_of_an_slo_is_read_as_the_same_slo() -> None:
    slo = parse_slo("mean <= 2.0x, p95<=300s")
    assert str(slo) == "mean<=2x,p95<=300s"
    assert parse_slo(str(slo)) == slo


@given(
    st.sampled_from(STATISTICS),
    st.decimals(min_value="0.000001", max_value="999999999.999999", places=6),
    st.sampled_from(["x", "s", "min", "h"]),
)
def test_no_limit_is_too_large_or_too_small_for_its_own_text(
    statistic: str, value: Decimal, unit: str
) -> None:
    slo = parse_slo(f"{statistic}<={value:f}{unit}")
    assert parse_slo(str(slo)) == slo


def test_a_limit_of_a_million_has_no_exponent() -> None:
    assert str(parse_slo("mean<=1000000x")) == "mean<=1000000x"
    assert parse_slo("mean<=1000000x").describe() == (
        "mean JCT at most 1000000x that of an idle machine"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not STATISTIC<=VALUE; use for example 'mean<=2x' or 'mean<=2x,p95<=300s'"),
        ("mean<2x", "'mean<2x' is not STATISTIC<=VALUE; use for example"),
        ("mean<=2", "'mean<=2' is not STATISTIC<=VALUE; use for example"),
        ("mean<=-2x", "'mean<=-2x' is not STATISTIC<=VALUE; use for example"),
        ("mean<=2x,", "'' is not STATISTIC<=VALUE; use for example"),
        (
            "p93<=2x",
            "'p93' is not a statistic of the job completion time (JCT); use mean, p50, p90, p95 or"
            " p99",
        ),
        (
            "ttft_p95<=2s",
            "'ttft_p95' is not a statistic of the job completion time (JCT);"
            " use mean, p50, p90, p95 or p99. TTFT does not limit a capacity: the report and"
            " cells.csv have ttft_p95_s and tpot_p95_s of each cell",
        ),
        ("mean<=0x", "a limit of zero cannot be met; use for example"),
    ],
)
def test_an_invalid_slo_is_one_line_with_the_option_the_value_and_a_remedy(
    text: str, reason: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_slo(text)
    assert str(error.value).startswith(f"--slo {text!r}: {reason}")
    assert "\n" not in str(error.value)


def test_a_relative_limit_multiplies_the_same_statistic_on_an_idle_machine() -> None:
    assert parse_slo("mean<=2x").limits[0].limit_s(IDLE_S) == 80
    assert parse_slo("p95<=3x").limits[0].limit_s(IDLE_S) == 300
    assert parse_slo("p95<=5min").limits[0].limit_s(IDLE_S) == 300


def test_the_tightest_limit_decides_and_all_must_hold() -> None:
    jct_s = replace(IDLE_S, mean=60.0, p95=250.0)
    # 60 s of 80 s, and 250 s of 200 s.
    assert parse_slo("mean<=2x").tightest(jct_s, IDLE_S) == 0.75
    assert parse_slo("mean<=2x,p95<=200s").tightest(jct_s, IDLE_S) == 1.25


def test_an_slo_in_words() -> None:
    assert parse_slo("mean<=2x").describe() == "mean JCT at most 2x that of an idle machine"
    assert parse_slo("mean<=2x,p95<=5min").describe() == (
        "mean JCT at most 2x that of an idle machine and P95 JCT at most 5 min"
    )
