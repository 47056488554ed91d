"""A live sweep of two cells that is killed several times at random moments before it may end: what
was measured stays, and the rest is measured once."""

from __future__ import annotations

import json
import random
import signal
import time
from itertools import count
from pathlib import Path

from tests.crash.small_sweep import RUN, output_of, sweep_folder
from tests.crash.trials import MAX_KILLS_PER_RUN, Snapshot, Warm
from tests.lines import read_lines

GAP_S = 0.05
CELLS = ("as-served_jps20_seed1", "as-served_jps40_seed1")
TURNS = [(f"job-{k}", turn) for k in range(3) for turn in range(3)]


def survives(kills: int, warm: Warm, url: str, tmp_path: Path) -> None:
    argv = ("sweep", "--engine", url, "--traces", "t.jsonl", "--jps", "20,40", "--out", RUN)
    since_s = time.monotonic()
    check_end(warm, sweep_folder(tmp_path / "timed", gap_s=GAP_S), argv)
    duration_s, rng, killed = time.monotonic() - since_s, random.Random(9), 0
    for trial in count():
        folder, left = sweep_folder(tmp_path / str(trial), gap_s=GAP_S), []
        for _ in range(MAX_KILLS_PER_RUN):
            if warm.stopped(folder, argv, rng.uniform(0, duration_s), signal.SIGKILL) >= 0:
                duration_s *= 0.9
                break
            killed += 1
            left.append(Snapshot.of(folder / RUN, live=True))
        check_end(warm, folder, argv)
        for before in left:
            before.check_kept(folder / RUN)
        if killed >= kills:
            return


def check_end(warm: Warm, folder: Path, argv: tuple[str, ...]) -> None:
    code = warm.run(folder, argv)
    # A busy machine may fail the gate on client lateness, and no other.
    failed = [line for line in output_of(folder).splitlines() if line.startswith("failed: ")]
    assert code == bool(failed), output_of(folder)
    assert all("client lateness" in line for line in failed), failed
    rows = json.loads((folder / RUN / "cells.json").read_text())
    assert sorted(row["cell"] for row in rows) == sorted(CELLS)
    for cell in CELLS:
        turns = read_lines(folder / RUN / cell / "turns.jsonl")
        assert sorted((turn["program_id"], turn["turn"]) for turn in turns) == TURNS
        assert {turn["error"] for turn in turns} == {None}
