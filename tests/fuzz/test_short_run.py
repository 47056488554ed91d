"""A hundred mutated inputs for each target; `make fuzz` tries a million."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.loaders import remove_folder
from tests.fuzz.target import bounded, run
from tests.fuzz.targets import TARGETS

INPUTS = {
    "report page": 4,
    "run folder": 20,
    "history.jsonl": 10,
    "virtual replay": 50,
}
DEFAULT_INPUTS = 100


@pytest.fixture(autouse=True, scope="module")
def _remove_folder() -> Iterator[None]:
    yield
    remove_folder()


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_input_is_refused_in_one_line_or_gives_a_valid_result(name: str) -> None:
    with bounded():
        outcome = run(TARGETS[name], seed=1, numbers=range(INPUTS.get(name, DEFAULT_INPUTS)))
    assert not outcome.failures, [(number, error) for number, _, error in outcome.failures]
    assert outcome.accepted, "it refuses everything, so the test shows little"
