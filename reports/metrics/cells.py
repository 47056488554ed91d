"""Collects the metrics and the validity of the cells of a run.

In: the cells of a run. Out: `Results`. Units are seconds and tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reports.capacity.slo import Slo
from reports.loads import AGENTS, RATES, Ladder
from reports.metrics.cell_numbers import read_numbers
from reports.metrics.goodput import goodput, slo_of
from reports.metrics.measure import Row, measure, read_recorded, settings_of
from reports.metrics.stalls import NO_JOBS, stalled_by_load
from reports.metrics.steady import unstable_cells
from reports.metrics.throughput import usd_per_job
from reports.parallel import each
from reports.run_folder.read import CellRun, Run, read_cell
from reports.run_folder.turns import Turns
from servers.basics.errors import InvalidRunFolder
from servers.basics.json_object import JsonObject


def ladder_in(cells: pd.DataFrame) -> Ladder:
    return AGENTS if "agents" in cells else RATES


def rows_of(cells: pd.DataFrame) -> list[JsonObject]:
    """Return a dict per cell. `DataFrame.to_dict` takes five times as long, as it looks each value
    up in the frame."""
    names = [str(name) for name in cells]
    columns = [cells[name].tolist() for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def amounts_of(cells: pd.DataFrame) -> pd.Series:
    """Return the loads of cells as numbers: jobs per second, or agents."""
    name = "agents" if "agents" in cells else "jps"
    return cells[name] if name in cells else pd.Series(dtype=float)


def cells_at(cells: pd.DataFrame, variant: str, loads: Mapping[int, float | None]) -> pd.DataFrame:
    """Return the cells of a variant at a load for each seed."""
    rows = cells[cells["variant"] == variant]
    pairs = zip(rows["seed"], amounts_of(rows), strict=True)
    return rows.loc[[loads.get(seed) == amount for seed, amount in pairs]]


@dataclass(frozen=True)
class Results:
    cells: pd.DataFrame
    """One row per finished cell, with the columns of `cells.csv`."""
    jobs: pd.DataFrame
    """One row per finished job of each cell, in order of arrival, with the columns cell, variant,
    load, seed, job_id and `JOB_COLUMNS`, and repeat if cells ran several times."""
    missing: tuple[tuple[str, str], ...]
    """Cells without a result, and the reason."""
    by_other_code: int = 0
    """Number of cells whose numbers another version computed, and whose turns were not kept."""

    @cached_property
    def rows(self) -> list[JsonObject]:
        """`cells` as dicts."""
        return rows_of(self.cells)

    @property
    def failed_gates(self) -> dict[str, str]:
        """Failed gates by cell, in the order of the cells."""
        failed = [row for row in self.rows if row["failed_gates"]]
        return {str(row["cell"]): str(row["failed_gates"]) for row in failed}


def collect(run: Run) -> Results:
    rows: list[Row] = []
    jobs: list[Turns] = []
    missing, by_other_code = list(run.missing), 0
    unstable = unstable_cells(run.cells)
    stalled = stalled_by_load(run.cells)
    slo = slo_of(run)
    items = [
        (cell, unstable.get(cell.folder.name), stalled.get(cell.key[1:], NO_JOBS), slo)
        for cell in run.cells
    ]
    for (cell, *_), found in zip(items, each(_numbers, items), strict=True):
        if isinstance(found, str):
            missing.append((cell.folder.name, found))
            continue
        rows.append(found[0] | {"usd_per_job": usd_per_job(run.sweep.price, found[0])})
        jobs.append(found[1])
        by_other_code += found[2]
    if any(cell.repeat > 1 for cell in run.cells):
        repeats = {cell.folder.name: cell.repeat for cell in run.cells}
        rows = [row | {"repeat": repeats[str(row["cell"])]} for row in rows]
    frames = pd.DataFrame(rows), _job_frame(rows, jobs)
    return Results(*frames, tuple(sorted(missing)), by_other_code)


def _numbers(
    item: tuple[CellRun, str | None, frozenset[str], Slo | None],
) -> tuple[Row, Turns, bool] | str:
    """Return the row and the finished jobs of a cell, and whether other code computed them; or the
    reason why it has none."""
    cell, unstable, stalled, slo = item
    is_current = True
    try:
        if (stored := read_numbers(cell)) is not None:
            row, jobs = stored.of(unstable)
            of_turns = stored.latency_columns()
            is_current = stored.is_current
        else:
            measured = measure(read_recorded(cell), cell, unstable, stalled)
            row, jobs, of_turns = measured.row, measured.done, measured.latencies
    except InvalidRunFolder as error:
        return str(error)
    if slo is not None and cell.done.idle_times_s is not None:
        row = {**row, **goodput(slo, cell.done.idle_times_s, of_turns, jobs["jct_s"])}
    return settings_of(cell) | row, jobs, not is_current


def failed_gates_of(folder: Path) -> str:
    """Return the failed gates of a finished cell; empty if it is valid."""
    try:
        cell = read_cell(folder)
        measured = measure(read_recorded(cell), cell, unstable_cells([cell]).get(folder.name))
        return str(measured.row["failed_gates"])
    except InvalidRunFolder as error:
        return str(error)


def _job_frame(rows: Sequence[Mapping[str, Any]], jobs: Sequence[Turns]) -> pd.DataFrame:
    if not rows:
        return pd.DataFrame()
    counts = [len(columns["job_id"]) for columns in jobs]
    of_cells = {
        name: pd.Index([row[name] for row in rows]).repeat(counts)
        for name in ("cell", "variant", "load", "seed", "repeat")
        if name in rows[0]
    }
    of_jobs = {name: np.concatenate([columns[name] for columns in jobs]) for name in jobs[0]}
    return pd.DataFrame(of_cells | of_jobs)
