"""`--slo`: what it accepts, what it says of the rest, and when it is met."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.capacity.slo import MEASURES, SPEED, STATISTICS, Limit, parse_slo
from servers.basics.errors import InvalidInput
from servers.records.done import Summary, Times
from tests.sentences import mentions


def times_s(mean: float, **percentiles: float) -> Summary:
    """Return a summary whose other percentiles are 0."""
    return Summary(mean, tuple(percentiles.get(f"p{n}", 0.0) for n in range(1, 100)))


JCT_S = times_s(40.0, p50=30.0, p90=80.0, p95=100.0)
TTFT_S = times_s(1.0, p7=0.5, p95=4.0, p97=5.0)
PER_TOKEN_S = times_s(0.02, p90=0.04)
IDLE = Times(jct=JCT_S, ttft=TTFT_S, first_ttft=TTFT_S, per_token=PER_TOKEN_S)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("mean<=2x", (Limit("mean", 2, "x"),)),
        ("p95<=300s", (Limit("p95", 300, "s"),)),
        ("P99<=5min", (Limit("p99", 5, "min"),)),
        ("p50 <= 1.5x , mean<=0.5h", (Limit("p50", 1.5, "x"), Limit("mean", 0.5, "h"))),
        ("jct_p95<=300s", (Limit("p95", 300, "s"),)),
        ("ttft_p95<=5s", (Limit("p95", 5, "s", "ttft"),)),
        ("first_ttft_p99 <= 10s", (Limit("p99", 10, "s", "first_ttft"),)),
        ("TPOT_mean<=50ms", (Limit("mean", 50, "ms", "tpot"),)),
        ("ttft_p97<=5s", (Limit("p97", 5, "s", "ttft"),)),
        ("speed_p90>=30", (Limit("p90", 30, "tok/s", "speed"),)),
        ("speed_p90>=30tok/s", (Limit("p90", 30, "tok/s", "speed"),)),
        ("speed_p90 >= 30 tokens/s", (Limit("p90", 30, "tok/s", "speed"),)),
        ("speed_p90>=0.5x", (Limit("p90", 0.5, "x", "speed"),)),
    ],
)
def test_an_slo_is_a_list_of_limits(text: str, limits: tuple[Limit, ...]) -> None:
    assert parse_slo(text).limits == limits


def test_the_text_of_an_slo_is_read_as_the_same_slo() -> None:
    slo = parse_slo("mean <= 2.0x, p95<=300s, ttft_p95<=5.0s, speed_p90>=30 tok/s")
    assert str(slo) == "mean<=2x,p95<=300s,ttft_p95<=5s,speed_p90>=30"
    assert parse_slo(str(slo)) == slo


@given(
    st.sampled_from([*MEASURES]),
    st.sampled_from(STATISTICS),
    st.decimals(min_value="0.000001", max_value="999999999.999999", places=6),
    st.sampled_from(["x", "ms", "s", "min", "h"]),
)
def test_no_limit_is_too_large_or_too_small_for_its_own_text(
    measure: str, statistic: str, value: Decimal, unit: str
) -> None:
    limit = f">={value:f}" if measure == SPEED else f"<={value:f}{unit}"
    slo = parse_slo(f"{measure}_{statistic}{limit}")
    assert parse_slo(str(slo)) == slo


def test_a_limit_of_a_million_has_no_exponent() -> None:
    assert str(parse_slo("mean<=1000000x")) == "mean<=1000000x"
    assert mentions(parse_slo("mean<=1000000x").describe(), "1000000x")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not STATISTIC<=VALUE; use for example 'mean<=2x' or 'ttft_p95<=5s,"),
        ("mean<2x", "'mean<2x' is not STATISTIC<=VALUE; use for example"),
        ("mean<=2", "'mean<=2' needs a unit: ms, s, min, h or x; use for example"),
        ("mean<=-2x", "'mean<=-2x' is not STATISTIC<=VALUE; use for example"),
        ("mean<=2x,", "'' is not STATISTIC<=VALUE; use for example"),
        ("p100<=2x", "'p100' is not known; use mean or p1 to p99"),
        ("ttft_p0<=2s", "'p0' is not known; use mean or p1 to p99"),
        ("p095<=2x", "'p095' is not known; use mean or p1 to p99"),
        ("ttfs_p95<=2s", "'ttfs' is not measured; did you mean ttft?"),
        ("power_p95<=2s", "'power' is not measured; use jct, ttft, first_ttft, tpot or speed"),
        ("ttft_p95>=2s", "'ttft_p95>=2s': a time has an upper limit, <="),
        ("speed_p90<=30", "'speed_p90<=30': a speed has a lower limit, >="),
        ("speed_p90>=30s", "'speed_p90>=30s' needs a unit: tok/s or x; use for example"),
        ("mean<=0x", "a limit of zero cannot be met; use for example"),
        ("mean<=2x,p95<=3x,jct_mean<=3x", "mean is given twice; give it once"),
        ("ttft_p95<=5s,ttft_p95<=900ms", "ttft_p95 is given twice; give it once"),
    ],
)
def test_an_invalid_slo_is_one_line_with_the_option_the_value_and_a_remedy(
    text: str, reason: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_slo(text)
    assert str(error.value).startswith(f"--slo {text!r}: {reason}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [
        ("mean<=2x", 80),
        ("p95<=3x", 300),
        ("p95<=5min", 300),
        ("ttft_p95<=1.5x", 6),
        ("ttft_p97<=3x", 15),
        ("ttft_p7<=4x", 2),
        ("tpot_p99<=50ms", 0.05),
        ("speed_p90>=20", 0.05),  # seconds per output token
        ("speed_p90>=0.5x", 0.08),  # twice the time per token
    ],
)
def test_a_limit_in_seconds_is_absolute_or_multiplies_the_same_statistic_of_an_idle_machine(
    text: str, limit_s: float
) -> None:
    assert parse_slo(text).limits[0].limit_s(IDLE) == pytest.approx(limit_s)


def test_the_tightest_limit_decides_and_all_must_hold() -> None:
    times = Times(
        jct=times_s(60.0, p95=250.0),
        ttft=times_s(1.0, p95=6.0),
        per_token=times_s(0.02, p90=0.1),
    )
    # 60 s of 80 s, and 250 s of 200 s.
    assert parse_slo("mean<=2x").tightest(times, IDLE) == 0.75
    assert parse_slo("mean<=2x,p95<=200s").tightest(times, IDLE) == 1.25
    # 6 s of 5 s, and 10 tokens/s of 30.
    both = parse_slo("mean<=2x,ttft_p95<=5s,speed_p90>=30")
    assert both.tightest(times, IDLE) == pytest.approx(3.0)
    assert str(both.tightest_limit(times, IDLE)) == "speed_p90>=30"
    # 60 s of 80 s, and of 50 s: one statistic may have a limit of each kind.
    assert parse_slo("mean<=2x,mean<=50s").tightest(times, IDLE) == 1.2


def test_what_no_turn_measures_meets_every_limit() -> None:
    assert parse_slo("tpot_p95<=50ms").tightest(IDLE, IDLE) == 0
    assert parse_slo("tpot_p95<=2x").tightest(IDLE, IDLE) == 0


def test_an_slo_in_words() -> None:
    assert mentions(parse_slo("mean<=2x").describe(), "mean JCT", "2x", "idle machine")
    both = parse_slo("mean<=2x,p95<=5min").describe()
    assert mentions(both, "mean JCT", "2x", "and P95 JCT", "5 min")
    turns = parse_slo("ttft_p95<=5s,speed_p90>=30").describe()
    assert mentions(turns, "P95 TTFT", "5 s", "at least 30", "90% of the turns")
