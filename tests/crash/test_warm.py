"""Tests share the process that forks `bench`."""

from __future__ import annotations

from pathlib import Path

from tests.crash.small_sweep import SWEEP, sweep_folder
from tests.crash.trials import Warm, wait_for_end_of
from tests.processes import wait_until


def test_a_run_that_a_failed_test_has_not_ended_blocks_no_later_one(
    warm: Warm, tmp_path: Path
) -> None:
    endless = (*SWEEP, "--programs", "2000", "--out", "o")
    begun = warm.begin(sweep_folder(tmp_path), endless)
    wait_until(lambda: list(tmp_path.glob("o/*/cell.json")))
    warm.end_all()
    wait_for_end_of(begun)
    assert warm.run(tmp_path, ["--version"]) == 0
