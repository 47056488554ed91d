"""A cell on a node: with the same code only, in a folder that does not stay."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cluster.node import SCRATCH, _other_code, _scratch, in_folder
from harness.sweep.cell import Work
from tests.harness.small import small_plan


def test_a_node_with_other_code_says_so() -> None:
    plan = small_plan()
    assert _other_code(Work(plan, Path("run"))) == ""
    other = Work(replace(plan, code_sha256="abc"), Path("run"))
    expected = (
        f"has another version of Turnstile (code_sha256 {plan.code_sha256}, where bench runs abc); "
        "install the same version on all nodes"
    )
    assert _other_code(other) == expected
    assert _other_code({"h100_llama": other}) == expected


def test_work_moves_to_the_folder_of_a_node_and_keeps_what_it_measured() -> None:
    work = Work(small_plan(), Path("run"))
    moved = in_folder(work, Path("/node"))
    assert moved.folder == Path("/node")
    assert moved.idle is work.idle
    several = in_folder({"a": work, "b": work}, Path("/node"))
    assert {name: each.folder for name, each in several.items()} == {
        "a": Path("/node/a"),
        "b": Path("/node/b"),
    }


def test_folders_of_killed_workers_are_removed_and_those_of_running_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = tmp_path / f"{SCRATCH}killed"
    (killed / "cell").mkdir(parents=True)
    with _scratch() as first:
        assert not killed.exists()
        with _scratch() as second:
            assert sorted(tmp_path.iterdir()) == sorted([first, second])
        assert list(tmp_path.iterdir()) == [first]
    assert list(tmp_path.iterdir()) == []
