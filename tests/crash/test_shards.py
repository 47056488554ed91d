"""Shards of a sweep share nothing but the run folder: killed or not, together they write the bytes
of one sweep."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.crash.small_sweep import OUTPUT, RUN, output_of, sweep_folder
from tests.crash.trials import Warm, bytes_of, wait_for_end_of

SHARDS = 4
PROGRAMS = 60
"""Enough for a cell to take as long as the start of a shard."""
CELLS = (
    *("sweep", "--once", "--traces", "t.jsonl", "--policies", "fcfs"),
    *("--jps", "0.2,0.3,0.4,0.5,0.6", "--out", RUN, "--workers", "1"),
)
"""Five cells: each shard has one, one has two."""


def test_four_shards_at_once_of_which_some_are_killed_give_the_bytes_of_one_sweep(
    warm: Warm, tmp_path: Path
) -> None:
    straight = sweep_folder(tmp_path / "straight", PROGRAMS)
    assert warm.run(straight, CELLS) == 0, output_of(straight)
    folder, rng = sweep_folder(tmp_path / "shards", PROGRAMS), random.Random(3)
    all_shards = [(*CELLS, "--shard", f"{k}/{SHARDS}") for k in range(1, SHARDS + 1)]
    killed = 0
    while True:
        pids = warm.begin_all(folder, all_shards)
        # The first to be killed is the last that began, which cannot have ended.
        for pid in [pids[-1], *rng.sample(pids[:-1], 1)] if killed < 3 else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            time.sleep(rng.uniform(0, 0.2))
        codes = [warm.end() for _ in pids]
        for pid in pids:
            wait_for_end_of(pid)
        assert set(codes) <= {0, -signal.SIGKILL}
        if set(codes) == {0}:
            break
        killed += codes.count(-signal.SIGKILL)
    assert killed > 0
    finished = f"the sweep is finished, write its report with: bench report {RUN}\n"
    assert any(finished in path.read_text() for path in folder.glob(f"*.{OUTPUT}"))
    assert warm.run(folder, ("report", RUN)) == 0, output_of(folder)
    assert bytes_of(folder / RUN) == bytes_of(straight / RUN)
