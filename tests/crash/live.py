"""A live sweep of two cells that is killed at random moments, several times over before it may end:
what was measured stays, the rest is measured once."""

from __future__ import annotations

import json
import random
import signal
import time
from itertools import count
from pathlib import Path

from tests.crash.small_sweep import RUN, output_of, sweep_folder
from tests.crash.trials import IN_A_ROW, Left, Warm

GAP_S = 0.05
CELLS = ("as-served_jps20_seed1", "as-served_jps40_seed1")
TURNS = [(f"job-{k}", turn) for k in range(3) for turn in range(3)]


def survives(kills: int, warm: Warm, url: str, tmp_path: Path) -> None:
    argv = ("sweep", "--engine", url, "--traces", "t.jsonl", "--jps", "20,40", "--out", RUN)
    since_s = time.monotonic()
    ends_well(warm, sweep_folder(tmp_path / "timed", gap_s=GAP_S), argv)
    lasts_s, rng, killed = time.monotonic() - since_s, random.Random(9), 0
    for trial in count():
        folder, left = sweep_folder(tmp_path / str(trial), gap_s=GAP_S), []
        for _ in range(IN_A_ROW):
            if warm.stopped(folder, argv, rng.uniform(0, lasts_s), signal.SIGKILL) >= 0:
                lasts_s *= 0.9
                break
            killed += 1
            left.append(Left.by(folder / RUN))
        ends_well(warm, folder, argv)
        for one in left:
            one.stays(folder / RUN)
        if killed >= kills:
            return


def ends_well(warm: Warm, folder: Path, argv: tuple[str, ...]) -> None:
    code = warm.run(folder, argv)
    # The one gate that a machine with other work to do may fail.
    failed = [line for line in output_of(folder).splitlines() if line.startswith("failed: ")]
    assert code == bool(failed), output_of(folder)
    assert all("client lateness" in line for line in failed), failed
    rows = json.loads((folder / RUN / "cells.json").read_text())
    assert sorted(row["cell"] for row in rows) == sorted(CELLS)
    for cell in CELLS:
        lines = (folder / RUN / cell / "turns.jsonl").read_text().splitlines()
        turns = [json.loads(line) for line in lines]
        assert sorted((turn["program_id"], turn["turn"]) for turn in turns) == TURNS
        assert {turn["error"] for turn in turns} == {None}
