from collections.abc import Callable
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal

from reports import side_by_side
from reports.load import load_run
from reports.metrics import collect


def test_many_cells_give_the_same_numbers_on_all_cores_in_the_same_order(
    new_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(("fcfs", "continuum"), jps=(0.1, 0.5), seeds=(1, 2), programs=5)
    (run / "fcfs_jps0.1_seed2" / "turns.jsonl").write_text("{}\n")
    alone = collect(load_run(run))
    monkeypatch.setattr(side_by_side, "MANY", 1)
    monkeypatch.setattr(side_by_side, "AT_A_TIME", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    together = collect(load_run(run))
    assert len(together.cells) == 7
    assert_frame_equal(together.cells, alone.cells)
    assert_frame_equal(together.jobs, alone.jobs)
    assert together.missing == alone.missing
