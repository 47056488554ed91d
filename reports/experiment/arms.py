"""Reads the runs of an arm of an experiment, one for each seed.

In: run folders. Out: their cells and jobs together, with the numbers that only claims use.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from reports.capacity.estimate import Kind
from reports.experiment.claims import Check
from reports.metrics.cells import Results, collect
from reports.run_folder.read import CellRun, Run, load_run
from reports.run_folder.turns import failed_turns, read_columns
from reports.statistics.searched import searched
from servers.records.sweep import SweepRecord

NO_NUMBER = {Kind.NEVER: 0.0, Kind.ALWAYS: math.inf, Kind.OPEN: math.nan}
"""Capacities that are no number: none is lower than any, and all is higher than any."""


@dataclass(frozen=True, slots=True)
class ArmRun:
    name: str
    x: float | None
    """Position on the figure's axis, if arms differ in a number."""
    folders: tuple[Path, ...]
    """One for each seed; a single one if a sweep has all seeds."""
    axis: str = ""
    """What `x` is."""


@dataclass(frozen=True, slots=True)
class ArmResults:
    arm: ArmRun
    results: Results
    sweep: SweepRecord
    """`sweep.json` of the first run."""

    @property
    def baseline(self) -> str:
        return self.sweep.baseline

    @property
    def seeds(self) -> int:
        return 0 if self.results.cells.empty else int(self.results.cells["seed"].nunique())


def read_arm(arm: ArmRun, checks: Sequence[Check]) -> ArmResults:
    runs = [load_run(folder) for folder in arm.folders]
    turns = {check.turn for check in checks if check.metric == "turn_mean_s"}
    found = [_read(run, turns) for run in runs]
    results = Results(
        pd.concat([each.cells for each in found], ignore_index=True),
        pd.concat([each.jobs for each in found], ignore_index=True),
        tuple(missing for each in found for missing in each.missing),
    )
    return ArmResults(arm, results, runs[0].sweep)


def _read(run: Run, turns: Collection[int]) -> Results:
    results = collect(run)
    if results.cells.empty:
        return results
    if search := searched(run):
        results = search.at_common_rates(results)
    cells = results.cells
    added = {"bubble_share": cells["queue_mean_s"] / cells["jct_mean_s"]}
    if search:
        of = {
            (each.variant, seed): NO_NUMBER.get(found.kind, found.load)
            for each in search.found
            for seed, found in each.by_seed.items()
        }
        pairs = zip(cells["variant"], cells["seed"], strict=True)
        added["capacity_jobs_per_s"] = pd.Series([of.get(pair) for pair in pairs], dtype=float)
    if turns:
        times_s = {cell.folder.name: _turn_times(cell) for cell in run.cells}
        for turn in sorted(turns):
            column = [times_s[name].get(turn - 1) for name in cells["cell"]]
            added[f"turn_{turn}_s"] = pd.Series(column, dtype=float)
    return Results(cells.assign(**added), results.jobs, results.missing)


def _turn_times(cell: CellRun) -> dict[int, float]:
    """Return the mean seconds from the arrival of a turn to its last token, by its index."""
    columns = read_columns(cell)
    times_s = columns["finished_at_s"] - columns["sent_at_s"]
    done = ~failed_turns(columns)
    return {
        int(index): float(times_s[done & (columns["turn"] == index)].mean())
        for index in set(columns["turn"][done].tolist())
    }
