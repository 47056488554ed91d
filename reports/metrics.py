"""Cells of a run in; their metrics and their validity out, as docs/metrics.md defines them.

Seconds and tokens throughout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from reports.gates import failed_gates, residual
from reports.jobs import jobs_of
from reports.load import HITS, Cell, NotARun, Run, read_turns
from reports.saturation import GROWTH_AT_SATURATION, backlog_growth
from reports.waterfall import WATERFALL

PERCENTILES = (50, 90, 95, 99)
JOB_COLUMNS = ("arrival_s", "jct_s", "bubble_s", *WATERFALL, "slowdown")


@dataclass(frozen=True, slots=True)
class Results:
    cells: pd.DataFrame
    """One row per finished cell, named by the columns of `cells.csv`."""
    jobs: pd.DataFrame
    """One row per finished job of each, in order of arrival: cell, variant, load, seed, job_id and
    `JOB_COLUMNS`."""
    missing: tuple[tuple[str, str], ...]
    """Cells without a result, and why."""

    @property
    def failed_gates(self) -> dict[str, str]:
        """By cell, in the order of the cells."""
        rows = self.cells.to_dict("records")
        return {str(row["cell"]): str(row["failed_gates"]) for row in rows if row["failed_gates"]}


def collect(run: Run) -> Results:
    rows: list[dict[str, Any]] = []
    frames: list[pd.DataFrame] = []
    missing = list(run.missing)
    for cell in run.cells:
        try:
            turns = read_turns(cell)
        except NotARun as error:
            missing.append((cell.folder.name, str(error)))
            continue
        jobs = jobs_of(turns)
        row = cell_row(cell, turns, jobs)
        rows.append(row)
        good = jobs.loc[~jobs["failed"], list(JOB_COLUMNS)].reset_index()
        frames.append(good.assign(**{k: row[k] for k in ("cell", "variant", "load", "seed")}))
    jobs_frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    return Results(pd.DataFrame(rows), jobs_frame, tuple(sorted(missing)))


def load_label(jps: float | None, arrivals: str) -> str:
    """What a cell is put under: its rate, or how its jobs arrive where there is none."""
    return arrivals if jps is None else f"{jps:g} jobs/s"


def cell_row(cell: Cell, turns: pd.DataFrame, jobs: pd.DataFrame) -> dict[str, Any]:
    config = cell.config
    done, good = jobs[~jobs["failed"]], turns[turns["error"].isna()]
    prompt = float(good["prompt_tokens"].sum())
    hits = {hit: _sum(good[hit]) / prompt if prompt else math.nan for hit in HITS}
    span = float(done["departure_s"].max() - done["arrival_s"].min()) if len(done) else math.nan
    growth = math.nan
    if not str(config["arrivals"]).startswith("closed"):
        growth = backlog_growth(turns, jobs)
    row: dict[str, Any] = {
        "cell": cell.folder.name,
        "variant": config["variant"],
        "bound": bool(config.get("bound")),
        "offload": bool(config.get("offload")),
        "jps": config["jps"],
        "load": load_label(config["jps"], str(config["arrivals"])),
        "seed": config["seed"],
        "jobs": len(done),
        "jct_mean_s": float(done["jct_s"].mean()) if len(done) else math.nan,
        **jct_percentiles(done["jct_s"]),
        "throughput_jobs_per_s": len(done) / span if span > 0 else math.nan,
        "hit_ratio": sum(hits.values()),
        "device_hit_ratio": hits["device_hit_tokens"],
        "dram_hit_ratio": hits["dram_hit_tokens"],
        "ssd_hit_ratio": hits["ssd_hit_tokens"],
        "computed_ratio": 1.0 - sum(hits.values()),
        "queue_mean_s": float(done["bubble_s"].mean()) if len(done) else math.nan,
        "preemptions": _sum(turns["preemptions"]),
        "failed_turns": int(turns["error"].notna().sum()),
        "drain_s": float(jobs["departure_s"].max() - jobs["arrival_s"].max()),
        "backlog_growth": growth,
        "saturated": bool(growth >= GROWTH_AT_SATURATION),
        "residual": residual(turns, jobs),
        "lateness_ratio": _ratio(done["late_s"].sum(), done["jct_s"].sum()),
    }
    row["failed_gates"] = "; ".join(failed_gates(cell, row, jobs, len(good), turns))
    return row


def jct_percentiles(jct_s: pd.Series) -> dict[str, float]:
    """Linear between the two nearest ranks, as numpy's default."""
    values = jct_s.to_numpy(dtype=float)
    points = np.percentile(values, PERCENTILES) if len(values) else [math.nan] * len(PERCENTILES)
    return {f"jct_p{p}_s": float(v) for p, v in zip(PERCENTILES, points, strict=True)}


def _sum(values: pd.Series) -> float:
    """NaN if the engine did not tell one of them."""
    return float(values.sum(skipna=False))


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0
