"""The values of `--disaggregate`."""

from __future__ import annotations

import pytest

from servers.basics.errors import InvalidInput
from servers.disaggregation import Split, engines_of, parse_splits


def test_a_split_names_its_prefill_and_its_decode_engines() -> None:
    assert parse_splits("2P6D") == (Split(2, 6),)
    assert parse_splits("none, 1p3d,2P2D") == (None, Split(1, 3), Split(2, 2))
    assert engines_of((None, Split(1, 3))) == 4
    assert Split(1, 3).name == "1P3D"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0P1D", "0P1D: write the numbers of prefill and of decode engines"),
        ("P1D", "P1D: write the numbers"),
        ("1P1D,", r"\(empty\): write the numbers"),
        ("1D1P", "1D1P: write the numbers"),
        ("9999999P1D", "together at most 100000"),
        ("1P1D,1P1D", "1P1D is given twice"),
        ("none", "compares no split; add one such as 1P1D"),
        ("1P1D,1P2D", r"1P1D \(2 engines\) and 1P2D \(3 engines\) do not use the same hardware"),
    ],
)
def test_other_values_are_refused_with_a_remedy(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_splits(text)
