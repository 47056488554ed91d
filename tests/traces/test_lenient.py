"""What others wrote, made fit to be told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traces.lenient import MAX_CHARACTERS, has_control, identifier


def test_long_ids_are_cut_and_differ_still() -> None:
    one, other = (identifier("x" * 1000 + end) for end in "ab")
    assert len(one) == len(other) == MAX_CHARACTERS
    assert one != other
    assert identifier("y" * MAX_CHARACTERS) == "y" * MAX_CHARACTERS


@given(st.text(max_size=900))
def test_no_id_moves_a_cursor(value: str) -> None:
    assert not has_control(identifier(value))
