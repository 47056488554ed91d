"""Computes the metrics and the validity of cells, as docs/reference/metrics.md defines them.

In: the cells of a run. Out: `Results`. Units are seconds and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from reports.metrics.alone import Machine, machine_of
from reports.metrics.background import background
from reports.metrics.fairness import fairness
from reports.metrics.gates import failed_gates, residual
from reports.metrics.jobs import job_columns
from reports.metrics.lower_bound import lower_bound
from reports.metrics.pins import pin_time
from reports.metrics.routing import replicas_of, routing
from reports.metrics.saturation import GROWTH_AT_SATURATION, backlog_growth
from reports.metrics.stalls import NO_JOBS, stalled_by_load, stalled_jobs, without
from reports.metrics.steady import Span, measured_turns, span_of, unstable_cells
from reports.metrics.waterfall import WATERFALL, before_first_token_s
from reports.parallel import each
from reports.run_folder.read import Cell, Run, read_cell
from reports.run_folder.turns import HITS, Column, Turns, failed_turns, read_with_background
from servers.basics.errors import InvalidRunFolder
from servers.records.cell import CellRecord

PERCENTILES = (50, 90, 95, 99)
EDGE = 0.2
"""Share of the jobs that the steady window leaves out at each end."""
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


def _numbers(item: tuple[Cell, str | None, frozenset[str]]) -> tuple[dict[str, Any], Turns] | str:
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


class Measured(NamedTuple):
    row: dict[str, Any]
    """The columns of `cells.csv`."""
    turns: Turns
    """Turns of the measured jobs."""
    jobs: Turns


def measure(cell: Cell, unstable: str | None, stalled: frozenset[str] = NO_JOBS) -> Measured:
    """Return the numbers of a cell. An unstable cell has no jobs, because their JCT would depend on
    when the cell ended. Jobs delayed by a stall of the client, in this cell or (`stalled`) in
    another cell with the same jobs, have no JCT either. Raises InvalidRunFolder."""
    every_turn, requests = read_with_background(cell)
    turns, machine = measured_turns(cell, every_turn), machine_of(cell)
    jobs = job_columns(turns, machine)
    if unstable is not None:
        jobs = {name: values[:0] for name, values in jobs.items()}
    span = span_of(cell, every_turn, jobs)
    own = stalled_jobs(cell, turns)
    left_out = own | stalled
    row = _row(cell, turns, jobs, span, unstable, left_out)
    row["lateness_ratio"] = _lateness(without(own, jobs))
    if (stalls := cell.done.client_stalls) is not None:
        row |= {"client_stalls": len(stalls), "stalled_jobs": len(left_out)}
    row |= background(cell, requests, span)
    row["failed_gates"] = "; ".join(
        failed_gates(cell, row, jobs, int((~failed_turns(turns)).sum()), turns, requests)
    )
    row |= _bounds(row, turns, machine, replicas_of(cell))
    return Measured(row, turns, without(left_out, jobs))


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


def _row(
    cell: Cell,
    turns: Turns,
    jobs: Turns,
    span: Span,
    unstable: str | None,
    left_out: frozenset[str],
) -> dict[str, Any]:
    config, failed, kept = cell.config, failed_turns(turns), without(left_out, jobs)
    done, good = _filter(~kept["failed"], kept), without(left_out, _filter(~failed, turns))
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
        "jobs": len(done["jct_s"]),
        "jct_mean_s": _mean(done["jct_s"]),
        **jct_percentiles(done["jct_s"]),
        "jct_steady_mean_s": _mean(kept["jct_s"] if cell.done.window else steady(kept)),
        **_throughput(config, span),
        **_token_times(good),
        **_hits(cell, good),
        "queue_mean_s": _mean(done["bubble_s"]),
        "preemptions": float(turns["preemptions"].sum()),
        **_pins(cell, jobs, span),
        **fairness(done, good),
        **routing(cell, len(done["jct_s"]), good),
        "failed_turns": int(failed.sum()),
        **_trend(cell, turns, jobs, unstable),
        "residual": residual(turns, jobs),
    }


def _lateness(jobs: Turns) -> float:
    done = _filter(~jobs["failed"], jobs)
    return _ratio(done["late_s"].sum(), done["jct_s"].sum())


def _filter(mask: Column, columns: Turns) -> Turns:
    return columns if mask.all() else {name: values[mask] for name, values in columns.items()}


def jct_percentiles(jct_s: Column) -> dict[str, float]:
    """Return percentiles, interpolated linearly between the two nearest ranks."""
    points = _percentiles(jct_s, PERCENTILES)
    return {f"jct_p{p}_s": v for p, v in zip(PERCENTILES, points, strict=True)}


def steady(jobs: Turns) -> Column:
    """Return JCTs of the finished jobs, excluding the first and the last fifth of arrivals."""
    edge = int(len(jobs["jct_s"]) * EDGE)
    within = slice(edge, len(jobs["jct_s"]) - edge)
    return jobs["jct_s"][within][~jobs["failed"][within]]


def _throughput(config: CellRecord, span: Span) -> dict[str, float]:
    per_s = 1 / span.length_s
    jobs_per_s = span.jobs * per_s
    gpus = config.gpus or math.nan
    price = (config.gpu or {}).get("price_usd_per_hour")
    usd_per_s = (price if isinstance(price, int | float) else math.nan) * gpus / 3600
    return {
        "throughput_jobs_per_s": jobs_per_s,
        "throughput_ratio": jobs_per_s / (config.jps or math.nan),
        "throughput_turns_per_min": span.turns * per_s * 60,
        "throughput_jobs_per_h_per_gpu": jobs_per_s * 3600 / gpus,
        "usd_per_job": usd_per_s * span.length_s / span.jobs if span.jobs else math.nan,
    }


def _token_times(good: Turns) -> dict[str, float]:
    """Return TTFT, and TPOT of answers with at least two tokens."""
    outputs = good["output_tokens"]
    many = outputs > 1
    per_token_s = good["decode_s"][many] / (outputs[many] - 1)
    found = {}
    for name, times_s in (("ttft", before_first_token_s(good)), ("tpot", per_token_s)):
        values = times_s[~np.isnan(times_s)]  # answers that were not streamed have neither
        found[f"{name}_mean_s"] = _mean(values)
        median, p95 = _percentiles(values, (50, 95))
        found |= {f"{name}_p50_s": median, f"{name}_p95_s": p95}
    return found


def _hits(cell: Cell, good: Turns) -> dict[str, float]:
    prompt = float(good["prompt_tokens"].sum()) or math.nan
    device, dram, ssd = (float(good[hit].sum()) / prompt for hit in HITS)
    shared = (cell.done.window or cell.config.workload).shared_prefix_tokens
    kept = float(good["kept_tokens"].sum())
    return {
        "hit_ratio": device + dram + ssd,
        "device_hit_ratio": device,
        "dram_hit_ratio": dram,
        "ssd_hit_ratio": ssd,
        "computed_ratio": 1.0 - (device + dram + ssd),
        "hit_bound_ratio": math.nan if shared is None else (kept + shared) / prompt,
    }


def _pins(cell: Cell, jobs: Turns, span: Span) -> dict[str, float]:
    begin_s, end_s = span.begin_s, span.end_s
    if cell.done.window is None:  # failed jobs have pins too
        begin_s, end_s = float(jobs["arrival_s"].min()), float(jobs["departure_s"].max())
    if not end_s > begin_s:
        return dict.fromkeys(("pin_block_s", "pin_unused_block_s", "pinned_ratio"), math.nan)
    held, unused = pin_time(cell, begin_s, end_s)
    profile = cell.config.profile
    blocks = cell.done.kv_blocks or profile.kv_blocks or math.nan
    return {
        "pin_block_s": held,
        "pin_unused_block_s": unused,
        "pinned_ratio": held / (blocks * (end_s - begin_s)),
    }


def _bounds(
    row: dict[str, Any], turns: Turns, machine: Machine | None, replicas: int
) -> dict[str, float]:
    """Return the lower bounds; NaN without a machine, if turns failed, and in a closed loop, where
    jobs arrive when others finish."""
    closed = row["load"].startswith("closed")
    if machine is None or closed or row["failed_turns"] or not row["jobs"]:
        names = ("jct_bound_s", "jct_over_bound", "rate_bound_jobs_per_s")
        return dict.fromkeys(names, math.nan)
    mean_s, jobs_per_s = lower_bound(turns, machine, replicas)
    return {
        "jct_bound_s": mean_s,
        "jct_over_bound": row["jct_mean_s"] / mean_s,
        "rate_bound_jobs_per_s": jobs_per_s,
    }


def _trend(
    cell: Cell, turns: Turns, jobs: Turns, unstable: str | None
) -> dict[str, float | bool | str]:
    """Return columns on the growth of the backlog while jobs arrive, and the time after the last
    arrival of a fixed set."""
    if cell.done.window is not None:
        system = cell.done.jobs_in_system
        growth = math.nan if system is None or system.growth is None else system.growth
        drain = {"drain_s": math.nan, "drain_ratio": math.nan, "backlog_growth": growth}
        stable = unstable is None
        return {**drain, "saturated": not stable, "steady": stable, "unstable": unstable or ""}
    closed = cell.config.arrivals.startswith("closed")
    growth = math.nan if closed else backlog_growth(turns, jobs)
    end_s = float(jobs["departure_s"].max())
    drain_s = end_s - float(jobs["arrival_s"].max())
    return {
        "drain_s": drain_s,
        "drain_ratio": _ratio(drain_s, end_s - float(jobs["arrival_s"].min())),
        "backlog_growth": growth,
        "saturated": bool(growth >= GROWTH_AT_SATURATION),
        "steady": False,
        "unstable": "",
    }


def _percentiles(values: Column, which: Sequence[int]) -> list[float]:
    if not len(values):
        return [math.nan] * len(which)
    return [float(v) for v in np.percentile(values, which)]


def _mean(values: Column) -> float:
    """Return the mean; NaN if there are no values or the engine did not report one of them."""
    return float(values.mean()) if len(values) else math.nan


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0
