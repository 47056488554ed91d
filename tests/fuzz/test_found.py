"""Inputs that once failed in `make fuzz`."""

from __future__ import annotations

import pytest

from tests.fuzz.target import bounded, check, input_of
from tests.fuzz.targets import TARGETS

FAILED_ONCE = {
    ("run folder", 12, 2): "a long text in place of a number was printed in full",
    ("run folder", 12, 1446): "a long text in place of a number was printed in full",
    ("run folder", 77, 563): "numpy took a list in place of a turn's number for a table",
    ("report page", 1123, 692): "a workload without its number of programs was not refused",
}


@pytest.mark.parametrize(("name", "seed", "number"), FAILED_ONCE)
def test_the_input_is_now_handled_correctly(name: str, seed: int, number: int) -> None:
    target = TARGETS[name]
    with bounded():
        check(target, input_of(target, seed, number))
