"""`traces.synthesis.nearest` and the burstiness of starts, as bench traces inspect prints them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.traces.test_traces_cli import bench
from traces import synthesize
from traces.formats.native import write_programs
from traces.program import Program, Turn
from traces.stats import statistics
from traces.synthesis.known import RECIPES
from traces.synthesis.nearest import nearest


@pytest.mark.parametrize("recipe", ["swe-bench", "mini-swe-agent", "claude-code"])
def test_programs_drawn_from_a_recipe_are_nearest_to_it(recipe: str) -> None:
    found = nearest(synthesize(recipe, 100, 7))
    assert sorted(likeness.recipe for likeness in found) == sorted(RECIPES)
    first, second = found[:2]
    assert first.recipe == recipe
    assert first.distance < 0.15 < second.distance


def test_single_turns_are_like_no_recipe() -> None:
    assert nearest([Program(str(n), (Turn(100, 10),)) for n in range(5)]) == []


def starting(*starts_s: float) -> list[Program]:
    return [
        Program(str(n), (Turn(100, 10),), recorded_start_s=start_s)
        for n, start_s in enumerate(starts_s)
    ]


def test_burstiness_compares_deviation_and_mean_of_the_times_between_starts() -> None:
    assert statistics(starting(0, 10, 20, 30)).burstiness == -1
    # 1, 1 and 10 s between starts: mean 4, deviation 27 ** 0.5 = 5.196; 1.196 / 9.196 = 0.130
    assert statistics(starting(0, 1, 2, 12)).burstiness == pytest.approx(0.130, abs=0.0005)
    assert statistics(starting(0, 10)).burstiness is None
    assert statistics(starting(5, 5, 5)).burstiness is None


def test_stats_prints_the_nearest_recipe(tmp_path: Path) -> None:
    shown = bench("inspect", "swe-bench")
    assert "The nearest recipe is swe-bench" in shown.stdout
    assert "bench traces fit --check swe-bench swe-bench\n" in shown.stdout
    assert "these programs" in shown.stdout
    found = json.loads(bench("inspect", "swe-bench", "--json").stdout)["recipes"]
    assert found[0]["recipe"] == "swe-bench"
    short = [Program(str(n), (Turn(9, 1), Turn(12, 1, 10))) for n in range(3)]
    write_programs(tmp_path / "short.jsonl", short)
    assert "No recipe is like these programs" in bench("inspect", tmp_path / "short.jsonl").stdout
