"""The first line of the page on fidelity follows from predictions of public runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.experiments.definition import load, names
from tools.world import add, error, headline, read_world


def finding(value: float, published: list[float], *, is_capacity: bool = True) -> dict[str, Any]:
    return {
        "says": "knee",
        "published": "",
        "ours": f"{value:g}",
        "outcome": "holds",
        "is_capacity": is_capacity,
        "published_range": published,
        "points": [{"value": value}],
    }


def test_an_error_is_that_of_the_nearest_stated_number_and_zero_within_a_range() -> None:
    assert error(12.0, [10.0]) == pytest.approx(0.2)
    assert error(12.0, [11.0, 16.0]) == 0
    assert error(20.0, [11.0, 16.0]) == pytest.approx(0.25)
    assert error(9.9, [11.0, 16.0]) == pytest.approx(-0.1)


def test_the_headline_has_the_largest_error_of_capacities_and_their_median(tmp_path: Path) -> None:
    # Errors of capacities: 25%, 10% and 0%; the job time, 100% off, is none.
    found = {
        "one": [finding(20, [11, 16]), finding(9.9, [11, 16])],
        "two": [finding(12, [11, 16]), finding(20, [10], is_capacity=False)],
    }
    for name, findings in found.items():
        (tmp_path / name).mkdir()
        content = {"name": name, "verdict": "", "outcome": "holds", "findings": findings}
        (tmp_path / name / "experiment.json").write_text(json.dumps(content))
    world = add({"one": {"findings": []}}, [tmp_path / name for name in found])
    assert headline(world) == (
        "Predicted capacity was within 25% of what others measured, on 3 runs (median 10%)."
    )


def test_the_recorded_predictions_are_of_the_claims_in_the_files() -> None:
    world = read_world()
    assert list(world) == [name for name in names() if name.startswith("world-")]
    for name, each in world.items():
        recorded = [(f["says"], f["published_range"]) for f in each["findings"]]
        assert recorded == [
            (c.says, [n for n in (c.published_from, c.published_to) if n is not None])
            for c in load(name).checks
        ]
