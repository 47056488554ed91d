"""docs/reference/capacities.md: what it says of the capacities that sweeps have found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from reports.capacity.estimate import Kind
from tests.docs.pages import DOCS
from tools.capacities_page import page
from tools.measured_capacities import (
    Sweep,
    merged,
    read_sweeps,
    sweep_of,
    write_sweeps,
)

REFERENCE = DOCS / "reference"
WORDS = (
    "--traces",
    "/home/me/weka",
    "--seeds",
    "1,2",
    "--jps",
    "0.1",
    "--out",
    "/home/me/weka-run",
)


def sweep(
    *,
    recorded: bool,
    workload: str = "mini-swe-agent",
    code: str = "0123",
    **by_variant: tuple[float | Kind, ...],
) -> Sweep:
    return Sweep(
        workload=workload,
        recorded=recorded,
        hardware="h100",
        options="",
        programs=80,
        left_out=0,
        code_sha256=dict.fromkeys(by_variant, code),
        references=["clairvoyant"],
        by_seed={
            name: {str(seed): each for seed, each in enumerate(values, start=1)}
            for name, values in by_variant.items()
        },
    )


def rows(text: str, first: str) -> list[list[str]]:
    """Return the cells of the rows whose first cell is `first`."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    return [row for row in cells if row and row[0] == first]


def test_the_committed_page_is_that_of_the_committed_capacities() -> None:
    written = (REFERENCE / "capacities.md").read_text()
    assert written == page(read_sweeps(REFERENCE / "capacities.json"))


def test_a_recipe_is_compared_with_its_recorded_set_by_the_ratio_of_each_seed() -> None:
    """The recipe is 5% lower with each seed, so the interval has no width. Times fcfs, a is 1.5.
    With two seeds the prior alone gives a half width of 3.182 · √(0.02 ÷ 3) ÷ √2 = 0.184."""
    text = page(
        [
            sweep(recorded=True, fcfs=(0.2, 0.4), a=(0.3, 0.6)),
            sweep(recorded=False, fcfs=(0.19, 0.38), a=(0.24, 0.48)),
        ]
    )
    (fcfs,), (a,) = rows(text, "fcfs"), rows(text, "a")
    assert fcfs[3] == "-5% (-5% to -5%)"
    assert a[3] == "-20% (-20% to -20%)"
    assert a[4:] == ["1.50 (1.25–1.80)", "1.26 (1.05–1.52)"]
    (summary,) = [row for row in rows(text, "`mini-swe-agent`") if row[2] == "1 of 2"]
    assert summary[1:] == ["H100", "1 of 2", "1 of 2", "-12%", "-20% (a)", "a and fcfs"]


def test_a_capacity_that_is_no_number_is_a_word_and_has_no_difference() -> None:
    text = page(
        [
            sweep(recorded=True, fcfs=(0.2, 0.2), clairvoyant=(0.3, 0.3)),
            sweep(recorded=False, fcfs=(0.2, 0.2), clairvoyant=(0.3, Kind.NEVER)),
        ]
    )
    (bound,) = rows(text, "*clairvoyant*")
    assert bound[1:] == ["0.3 (0.3–0.3)", "none", "–", "1.50 (1.25–1.80)", ""]


def test_a_policy_that_ran_on_one_side_only_has_no_difference() -> None:
    text = page(
        [
            sweep(recorded=True, fcfs=(0.2, 0.2), a=(0.3, 0.3)),
            sweep(recorded=False, fcfs=(0.2, 0.2)),
        ]
    )
    assert rows(text, "a") == [["a", "0.3 (0.3–0.3)", "–", "–", "1.50 (1.25–1.80)", ""]]


def test_other_recipes_have_a_column_per_machine() -> None:
    text = page([sweep(recorded=False, workload="swe-bench", fcfs=(0.2, 0.2), a=(0.5, 0.5))])
    assert rows(text, "a") == [["a", "0.5 (0.5–0.5) [2.50]"]]
    assert rows(text, "policy") == [["policy", "H100"]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    workload: dict[str, Any] = {"name": "weka", "programs": 40, "left_out": [{}, {}, {}]}
    answer = {
        "references": [],
        "capacities": {
            "fcfs": {
                "by_seed": {
                    "1": {"kind": "found", "jobs_per_s": 0.0123456},
                    "2": {"kind": "always", "jobs_per_s": None},
                }
            }
        },
        "provenance": {
            "hardware": "h100",
            "made_by": {"argv": ["bench", "sweep", *WORDS]},
        },
    }
    variants = [{"name": "fcfs", "policy_sha256": "4567"}]
    sweep = {"workload": workload, "code_sha256": "0123", "variants": variants}
    (folder / "sweep.json").write_bytes(orjson.dumps(sweep))
    (folder / "answer.json").write_bytes(orjson.dumps(answer))
    return folder


def test_a_run_folder_is_read_without_its_paths(run: Path, tmp_path: Path) -> None:
    found = sweep_of(run)
    assert found.key == ("weka", True, "h100")
    assert found.code_sha256 == {"fcfs": "0123/4567"}
    assert (found.options, found.left_out) == ("--jps 0.1", 3)
    assert found.by_seed == {"fcfs": {"1": 0.01235, "2": Kind.ALWAYS}}
    write_sweeps(tmp_path / "file.json", [found])
    assert read_sweeps(tmp_path / "file.json") == [found]
    assert "/home" not in (tmp_path / "file.json").read_text()


def test_variants_of_a_new_sweep_replace_those_of_an_old_one() -> None:
    old = sweep(recorded=True, fcfs=(0.2,), a=(0.25,))
    new = sweep(recorded=True, code="4567", a=(0.3,), b=(0.4,))
    other = sweep(recorded=False, fcfs=(0.5,))
    first, both = merged([old, other], [new])
    assert first == other
    assert both.by_seed == {"fcfs": {"1": 0.2}, "a": {"1": 0.3}, "b": {"1": 0.4}}
    assert both.code_sha256 == {"fcfs": "0123", "a": "4567", "b": "4567"}


def test_a_new_sweep_adds_seeds_to_variants_that_ran_with_the_same_code() -> None:
    old = sweep(recorded=True, fcfs=(0.2, 0.3), a=(0.25, 0.35))
    new = msgspec.structs.replace(
        sweep(recorded=True),
        code_sha256={"fcfs": "0123", "a": "4567"},
        by_seed={"fcfs": {"10": 0.5, "2": 0.4}, "a": {"3": 0.6}},
    )
    [both] = merged([old], [new])
    assert list(both.by_seed["fcfs"].items()) == [("1", 0.2), ("2", 0.4), ("10", 0.5)]
    assert both.by_seed["a"] == {"3": 0.6}
