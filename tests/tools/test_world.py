"""The first line of the page on fidelity follows from predictions of public runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.experiments.definition import load, names
from tests.sentences import mentions
from tools.world import World, add, error, headline, read_world, rows, settings_sha256


def finding(
    value: float,
    published: list[float],
    outcome: str = "holds",
    *,
    is_capacity: bool = True,
    bounds: str = "",
) -> dict[str, Any]:
    return {
        "says": "knee",
        "published": "",
        "ours": f"{value:g}",
        "outcome": outcome,
        "is_capacity": is_capacity,
        "published_range": published,
        "points": [{"value": value, "bounds": bounds}],
    }


def test_an_error_is_that_of_the_nearest_stated_number_and_zero_within_a_range() -> None:
    assert error(12.0, [10.0]) == pytest.approx(0.2)
    assert error(12.0, [11.0, 16.0]) == 0
    assert error(20.0, [11.0, 16.0]) == pytest.approx(0.25)
    assert error(9.9, [11.0, 16.0]) == pytest.approx(-0.1)


ONE, TWO = "world-momento", "world-multi-repo"


def world_of(tmp_path: Path, found: dict[str, list[dict[str, Any]]]) -> World:
    for name, findings in found.items():
        (tmp_path / name).mkdir()
        content = {"name": name, "verdict": "", "outcome": "holds", "findings": findings}
        (tmp_path / name / "experiment.json").write_text(json.dumps(content))
    return add({ONE: {"findings": []}}, [tmp_path / name for name in found])


def test_the_headline_has_the_largest_error_of_capacities_and_their_median(tmp_path: Path) -> None:
    # Errors of capacities: 25%, 10% and 0%; the job time, 100% off, is none.
    found = {
        ONE: [finding(20, [11, 16], "does not hold"), finding(9.9, [11, 16], "cannot be said")],
        TWO: [finding(12, [11, 16]), finding(20, [10], is_capacity=False)],
    }
    error = "25%", "3 comparisons", "2 sources", "median 10%"
    claims = (
        "1 of these claims holds, 1 does not, and 1 is undecided, Of all 4 claims below, 2 hold"
    )
    assert mentions(headline(world_of(tmp_path, found)), *error, *claims.split(", "))


def test_a_prediction_that_arms_only_bound_is_counted_without_an_error(tmp_path: Path) -> None:
    bounded = finding(32, [11, 16], "does not hold", bounds="more than 32, the last arm")
    world = world_of(tmp_path, {ONE: [finding(18, [11, 16], "does not hold"), bounded]})
    error = "12%", "1 comparison", "1 source", "median 12%", "1 more has only a bound"
    assert mentions(headline(world), *error, "None of these claims", "2 do not", "0 are undecided")
    assert [row[4] for row in rows(world)] == ["+12%", "–"]


def test_a_capacity_that_is_far_off_is_named_with_its_experiment(tmp_path: Path) -> None:
    found = {ONE: [finding(20, [11, 16], "does not hold")], TWO: [finding(20, [4])]}
    claims = "25%", "1 of 2 comparisons", "`world-multi-repo` it was 5 times as high"
    assert mentions(headline(world_of(tmp_path, found)), *claims)


def test_settings_and_bounds_change_the_hash_and_texts_do_not() -> None:
    experiment = load(ONE)
    bounds = experiment.checks[0].model_copy(update={"most": 99})
    changes = (
        {"sweep": {**experiment.sweep, "seeds": "1..4"}},
        {"workload": {**experiment.workload, "programs": 7}},
        {"arms": experiment.arms[1:]},
        {"checks": (bounds, *experiment.checks[1:])},
    )
    changed = [settings_sha256(experiment.model_copy(update=change)) for change in changes]
    assert len({settings_sha256(experiment), *changed}) == 5
    texts = experiment.model_copy(update={"assumes": "", "predicts": ""})
    assert settings_sha256(texts) == settings_sha256(experiment)


def test_the_recorded_predictions_are_of_the_claims_in_the_files() -> None:
    world = read_world()
    assert list(world) == [name for name in names() if name.startswith("world-")]
    for name, each in world.items():
        assert each["settings_sha256"] == settings_sha256(load(name)), "run make world"
        recorded = [(f["says"], f["published_range"]) for f in each["findings"]]
        assert recorded == [
            (c.says, [n for n in (c.published_from, c.published_to) if n is not None])
            for c in load(name).checks
        ]
