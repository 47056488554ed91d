"""`--jps` and `--seeds` parse rates and seeds, and refuse everything else in one line."""

from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.rates import parse_rates, parse_seeds


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("0.13", (0.13,)),
        (".5", (0.5,)),
        ("2", (2.0,)),
        ("5e-2", (0.05,)),
        ("0.1,0.5", (0.1, 0.5)),
        (" 0.5 , 0.1 ", (0.1, 0.5)),
        ("0.1,0.10,0.1", (0.1,)),
        # the nine rates of the sources
        ("0.05..0.9", (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 0.7, 0.9)),
        ("0.2..0.5", (0.2, 0.25, 0.3, 0.5)),
        # bounds off the grid are rates too
        ("0.12..0.28", (0.12, 0.15, 0.2, 0.25, 0.28)),
        ("1..2", (1.0, 2.0)),
        ("0.3..0.3", (0.3,)),
        # decimal steps: 0.15, not 0.15000000000000002
        ("0.05..0.25:0.05", (0.05, 0.1, 0.15, 0.2, 0.25)),
        ("0.1..1:0.4", (0.1, 0.5, 0.9)),
        ("0.1..0.2:5", (0.1,)),
        ("2,0.1..0.3:0.1", (0.1, 0.2, 0.3, 2.0)),
    ],
)
def test_rates_are_parsed(text: str, rates: tuple[float, ...]) -> None:
    assert parse_rates(text) == rates


def test_decimal_steps_have_no_rounding_errors_when_printed() -> None:
    printed = [str(rate) for rate in parse_rates("0.05..0.9:0.05")]
    assert printed[:4] == ["0.05", "0.1", "0.15", "0.2"]
    assert (len(printed), printed[-1]) == (18, "0.9")
    assert max(map(len, printed)) == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no value; use for example 0.05..0.9"),
        ("0.1,,0.2", "an item is empty"),
        ("0.1,", "an item is empty"),
        ("0", "zero"),
        ("0..0.5", "zero"),
        ("-1", "'-1' is not a positive number"),
        ("-0.1..0.5", "'-0.1' is not a positive number"),
        ("nan", "'nan' is not a positive number"),
        ("inf", "'inf' is not a positive number"),
        ("0.1..inf", "'inf' is not a positive number"),
        ("1e999", "'1e999' is not within 0.000001 to 1,000,000 per second"),
        ("1e-300", "'1e-300' is not within 0.000001 to 1,000,000 per second"),
        ("0.1..1e7", "'1e7' is not within 0.000001 to 1,000,000 per second"),
        ("1_0", "'1_0' is not a positive number"),
        ("0.9..0.05", "the range is reversed; use 0.05..0.9"),
        ("0.9..0.05:0.1", "the range is reversed; use 0.05..0.9"),
        ("0.1..0.5:0", "zero"),
        ("0.1..0.5:", "'' is not a positive number"),
        ("0.1..0.5:-0.1", "'-0.1' is not a positive number"),
        ("0.1..", "'' is not a positive number"),
        ("0.5:0.1", "a step needs a range"),
        ("0.001..2:0.001", "more than 1000 rates; use a larger step"),
        ("1..2:1e-99", "more than 1000 rates; use a larger step"),
        ("0.1..1:0.001,1..1.9:0.001", "more than 1000 rates; use fewer"),
        ("fast", "'fast' is not a positive number; use e.g. 0.2"),
    ],
)
def test_invalid_rates_are_refused_with_a_remedy(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^--jps '") as caught:
        parse_rates(text)
    assert reason in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0", (0,)), ("1..5", (1, 2, 3, 4, 5)), ("0,3,7", (0, 3, 7)), ("7,1..3,2", (1, 2, 3, 7))],
)
def test_seeds_are_parsed(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no value; use for example 1..5"),
        ("1,,2", "an item is empty"),
        ("5..1", "the range is reversed; use 1..5"),
        ("-1", "'-1' is not a seed; use whole numbers of at least 0"),
        ("1.5", "'1.5' is not a seed"),
        ("1..", "'' is not a seed"),
        ("²", "is not a seed"),
        ("0..1000", "more than 1000 seeds"),
        ("0..999,2000", "more than 1000 seeds"),
    ],
)
def test_invalid_seeds_are_refused_with_a_remedy(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^--seeds '") as caught:
        parse_seeds(text)
    assert reason in str(caught.value)


like_rates = st.one_of(
    st.text(),
    st.text(alphabet="0123456789.,:-+e \n\tnaif_", max_size=40),
    st.from_regex(r"\A\d?\.?\d{1,3}(e-?\d{1,2})?(\.\.\d?\.?\d{1,3})?(:\d?\.\d{1,2})?\Z"),
)


T = TypeVar("T")


def parse_or_refuse(parse: Callable[[str], T], option: str, text: str) -> T | None:
    """Return the parsed value; None after an error, which must be one line naming the option."""
    message = ""
    try:
        return parse(text)
    except ValueError as error:
        message = str(error)
    assert message.startswith(f"{option} ")
    assert len(message.splitlines()) == 1
    return None


@given(like_rates)
def test_any_text_gives_valid_rates_or_an_error_in_one_line(text: str) -> None:
    rates = parse_or_refuse(parse_rates, "--jps", text)
    if rates is None:
        return
    assert 1 <= len(rates) <= 1000
    assert all(1e-6 <= rate <= 1e6 for rate in rates)
    assert list(rates) == sorted(set(rates))


@given(like_rates)
def test_any_text_gives_valid_seeds_or_an_error_in_one_line(text: str) -> None:
    seeds = parse_or_refuse(parse_seeds, "--seeds", text)
    if seeds is None:
        return
    assert 1 <= len(seeds) <= 1000
    assert all(seed >= 0 for seed in seeds)
    assert list(seeds) == sorted(set(seeds))


@given(first=st.integers(1, 500), count=st.integers(1, 60), step=st.integers(1, 50))
def test_a_stepped_range_contains_every_multiple_as_its_exact_decimal(
    first: int, count: int, step: int
) -> None:
    last = first + (count - 1) * step
    rates = parse_rates(f"{first / 100:.2f}..{last / 100:.2f}:{step / 100:.2f}")
    assert rates == tuple(float(f"{first + k * step}e-2") for k in range(count))
