"""Ids from foreign files are made safe to print."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from servers.basics.text import MAX_CHARACTERS, has_control, identifier


def test_long_ids_are_shortened_and_stay_distinct() -> None:
    first, second = (identifier("x" * 1000 + end) for end in "ab")
    assert len(first) == len(second) == MAX_CHARACTERS
    assert first != second
    assert identifier("y" * MAX_CHARACTERS) == "y" * MAX_CHARACTERS


@given(st.text(max_size=900))
def test_ids_contain_no_control_characters(value: str) -> None:
    assert not has_control(identifier(value))
