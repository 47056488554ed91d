"""Parallel processes read cells with the same results in the same order, and leave none behind."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal

from reports import parallel
from reports.metrics.cells import collect
from reports.parallel import each
from reports.run_folder.read import load_run
from servers.basics.compiled_core import WORKER, Core, offered_to_workers
from tests.leaks import descendants, has_ended
from tests.processes import wait_until
from tests.reports.make_run import write_lines


@pytest.mark.parametrize("trial_s", [parallel.TRIAL_S, 0.0])
def test_results_come_in_the_order_of_the_items_however_many_there_are(
    trial_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "TRIAL_S", trial_s)
    for count in (0, 1, 50):
        assert list(each(math.factorial, range(count))) == list(map(math.factorial, range(count)))


def test_many_cells_give_the_same_numbers_on_all_cores_in_the_same_order(
    new_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(("fcfs", "continuum"), jps=(0.1, 0.5), seeds=(1, 2), programs=5)
    write_lines(run / "fcfs_jps0.1_seed2" / "turns.jsonl", [{}])
    alone = collect(load_run(run))
    monkeypatch.setattr(parallel, "TRIAL_S", 0.0)
    monkeypatch.setattr(parallel, "ITEMS_PER_TASK", 2)
    together = collect(load_run(run))
    assert len(together.cells) == 7
    assert_frame_equal(together.cells, alone.cells)
    assert_frame_equal(together.jobs, alone.jobs)
    assert together.missing == alone.missing


TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@TWO_CORES
def test_processes_take_the_compiled_core_that_they_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "TRIAL_S", 0.0)
    with offered_to_workers(Core(tmp_path, "")):
        assert os.environ[WORKER] == str(tmp_path)
        assert list(each(os.getenv, [WORKER])) == [None], "it was taken"


@TWO_CORES
def test_a_parent_that_is_killed_leaves_no_process() -> None:
    code = "from reports.parallel import each; list(each(sum, [range(10**8)] * 999))"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stderr=subprocess.DEVNULL
    ) as parent:
        try:
            # Two workers, and the resource tracker of multiprocessing.
            wait_until(lambda: len(descendants(parent.pid)) >= 3)
            workers = descendants(parent.pid)
        finally:
            parent.kill()
    wait_until(lambda: all(map(has_ended, workers)))
