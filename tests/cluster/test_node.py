"""A cell on a node: with the same code only, in a folder that does not stay."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from harness.cluster.node import SCRATCH, _other_code, _scratch, code_of, in_folder
from harness.sweep.cell import Work
from tests.harness.small import small_plan
from tests.sentences import mentions


def test_a_node_with_other_code_says_so() -> None:
    work = {"": Work(small_plan(), Path("run"))}
    code = code_of(work)
    assert _other_code(work, code) == ""
    fewer = {"": Work(small_plan("fcfs"), Path("run"))}
    codes = code_of(fewer), code
    assert mentions(_other_code(fewer, code), *codes, "install the same version", "all nodes")


def test_work_moves_to_the_folder_of_a_node_and_keeps_what_it_measured() -> None:
    work = Work(small_plan(), Path("run"))
    moved = in_folder({"": work, "b": work}, Path("/node"))
    assert moved[""].idle is work.idle
    folders = {name: each.folder for name, each in moved.items()}
    assert folders == {"": Path("/node"), "b": Path("/node/b")}


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
