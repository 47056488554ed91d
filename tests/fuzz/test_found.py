"""Inputs that `make fuzz` found to be answered wrongly, kept small."""

from __future__ import annotations

import pytest

from tests.fuzz.target import answered, bounded, input_of
from tests.fuzz.targets import TARGETS

FOUND = {
    ("run folder", 12, 2): "a number that is a long text was told in full",
    ("run folder", 12, 1446): "a number that is a long text was told in full",
    ("run folder", 77, 563): "a list in the place of a turn's number was a table to numpy",
    ("report page", 1123, 692): "a workload without a number of programs was counted",
}


@pytest.mark.parametrize(("name", "seed", "number"), FOUND)
def test_the_input_is_now_handled_correctly(name: str, seed: int, number: int) -> None:
    target = TARGETS[name]
    with bounded():
        answered(target, input_of(target, seed, number))
