"""A few hundred mutated inputs for each target; `make fuzz` tries a million."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.loaders import leave_nothing
from tests.fuzz.target import bounded, run
from tests.fuzz.targets import TARGETS

INPUTS = {
    "report page": 8,
    "run folder": 60,
    "history.jsonl": 20,
    "virtual replay": 150,
    "e.toml": 200,
}
MOST = 300


@pytest.fixture(autouse=True, scope="module")
def _nothing_stays() -> Iterator[None]:
    yield
    leave_nothing()


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_input_is_refused_in_one_line_or_gives_a_valid_result(name: str) -> None:
    with bounded():
        found = run(TARGETS[name], seed=1, numbers=range(INPUTS.get(name, MOST)))
    assert not found.wrong, [(number, why) for number, _, why in found.wrong]
    assert found.taken, "refuses everything, so it tests little"
