"""Computes the metrics and the validity of cells, as docs/reference/metrics.md defines them.

In: the cells of a run. Out: `Results`. Units are seconds and tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from reports.metrics.alone import machine_of
from reports.metrics.background import BACKGROUND
from reports.metrics.fairness import FAIRNESS
from reports.metrics.gates import VALIDITY, failed_gates
from reports.metrics.jct import JCT, WAITS
from reports.metrics.jobs import job_columns
from reports.metrics.lower_bound import BOUNDS
from reports.metrics.metric import Facts, Metric
from reports.metrics.pins import PINS
from reports.metrics.routing import ROUTING
from reports.metrics.saturation import TREND
from reports.metrics.stalls import NO_JOBS, stalled_by_load, stalled_jobs, without
from reports.metrics.steady import measured_turns, span_of, unstable_cells
from reports.metrics.throughput import THROUGHPUT
from reports.metrics.tokens import HITS_OF_CELL, LATENCY
from reports.metrics.waterfall import WATERFALL
from reports.parallel import each
from reports.run_folder.read import CellRun, Run, read_cell
from reports.run_folder.turns import Column, Turns, failed_turns, read_with_background
from servers.basics.errors import InvalidRunFolder

GROUPS = (
    *(JCT, THROUGHPUT, LATENCY, HITS_OF_CELL, WAITS, PINS, FAIRNESS, ROUTING, TREND, VALIDITY),
    *(BACKGROUND, BOUNDS),
)
"""In the order of the columns of `cells.csv`."""
METRICS: Mapping[str, Metric] = {m.column: m for group in GROUPS for m in group.metrics}
JOB_COLUMNS = ("arrival_s", "jct_s", "bubble_s", *WATERFALL, "least_s", "slowdown")


@dataclass(frozen=True, slots=True)
class Results:
    cells: pd.DataFrame
    """One row per finished cell, with the columns of `cells.csv`."""
    jobs: pd.DataFrame
    """One row per finished job of each cell, in order of arrival, with the columns cell, variant,
    load, seed, job_id and `JOB_COLUMNS`, and repeat if cells ran several times."""
    missing: tuple[tuple[str, str], ...]
    """Cells without a result, and the reason."""

    @property
    def failed_gates(self) -> dict[str, str]:
        """Failed gates by cell, in the order of the cells."""
        rows = self.cells.to_dict("records")
        return {str(row["cell"]): str(row["failed_gates"]) for row in rows if row["failed_gates"]}


def collect(run: Run) -> Results:
    rows: list[dict[str, Any]] = []
    jobs: list[Turns] = []
    missing = list(run.missing)
    unstable = unstable_cells(run.cells)
    stalled = stalled_by_load(run.cells)
    items = [
        (cell, unstable.get(cell.folder.name), stalled.get(cell.key[1:], NO_JOBS))
        for cell in run.cells
    ]
    for (cell, _, _), found in zip(items, each(_numbers, items), strict=True):
        if isinstance(found, str):
            missing.append((cell.folder.name, found))
            continue
        rows.append(found[0])
        jobs.append(found[1])
    if any(cell.repeat > 1 for cell in run.cells):
        repeats = {cell.folder.name: cell.repeat for cell in run.cells}
        rows = [{**row, "repeat": repeats[row["cell"]]} for row in rows]
    return Results(pd.DataFrame(rows), _job_frame(rows, jobs), tuple(sorted(missing)))


def _numbers(
    item: tuple[CellRun, str | None, frozenset[str]],
) -> tuple[dict[str, Any], Turns] | str:
    """Return the row and the finished jobs of a cell, or the reason why it has none."""
    try:
        measured = measure(*item)
    except InvalidRunFolder as error:
        return str(error)
    done = ~measured.jobs["failed"]
    return measured.row, {name: measured.jobs[name][done] for name in ("job_id", *JOB_COLUMNS)}


def failed_gates_of(folder: Path) -> str:
    """Return the failed gates of a finished cell; empty if it is valid."""
    try:
        cell = read_cell(folder)
        return str(measure(cell, unstable_cells([cell]).get(folder.name)).row["failed_gates"])
    except InvalidRunFolder as error:
        return str(error)


class MeasuredCell(NamedTuple):
    row: dict[str, Any]
    """The columns of `cells.csv`."""
    turns: Turns
    """Turns of the measured jobs."""
    jobs: Turns


def measure(cell: CellRun, unstable: str | None, stalled: frozenset[str] = NO_JOBS) -> MeasuredCell:
    """Return the numbers of a cell. An unstable cell has no jobs, because their JCT would depend on
    when the cell ended. Jobs delayed by a stall of the client, in this cell or (`stalled`) in
    another cell with the same jobs, have no JCT either. Raises InvalidRunFolder."""
    every_turn, requests = read_with_background(cell)
    turns, machine = measured_turns(cell, every_turn), machine_of(cell)
    jobs = job_columns(turns, machine)
    if unstable is not None:
        jobs = {name: values[:0] for name, values in jobs.items()}
    own = stalled_jobs(cell, turns)
    left_out = own | stalled
    kept = without(left_out, jobs)
    facts = Facts(
        cell=cell,
        turns=turns,
        jobs=jobs,
        kept=kept,
        done=_filter(~kept["failed"], kept),
        good=without(left_out, _filter(~failed_turns(turns), turns)),
        span=span_of(cell, every_turn, jobs),
        requests=requests,
        lateness_ratio=_lateness(without(own, jobs)),
        left_out=len(left_out),
        unstable=unstable or "",
        machine=machine,
    )
    row = _settings(cell)
    for group in GROUPS:
        row |= group.of(facts)
        if group is BACKGROUND:  # `cells.csv` has the gates before the bounds
            row["failed_gates"] = "; ".join(failed_gates(facts, row))
    return MeasuredCell(row, turns, kept)


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


def load_label(jps: float | None, arrivals: str) -> str:
    """Return the label of a load: its rate, or the arrival process if it has no rate."""
    return arrivals if jps is None else f"{jps:g} jobs/s"


def _settings(cell: CellRun) -> dict[str, Any]:
    config = cell.config
    return {
        "cell": cell.folder.name,
        "variant": config.variant,
        "bound": config.bound,
        "offload": bool(config.offload),
        "jps": config.jps,
        "load": load_label(config.jps, config.arrivals),
        "seed": config.seed,
        "hardware": config.hardware,
        "gpus": config.gpus,
        "model": config.model,
    }


def _lateness(jobs: Turns) -> float:
    done = _filter(~jobs["failed"], jobs)
    late_s, jct_s = float(done["late_s"].sum()), float(done["jct_s"].sum())
    return late_s / jct_s if jct_s > 0 else 0.0


def _filter(mask: Column, columns: Turns) -> Turns:
    return columns if mask.all() else {name: values[mask] for name, values in columns.items()}
