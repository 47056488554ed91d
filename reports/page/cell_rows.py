"""Formats the page's table of all cells. docs/reference/metrics.md defines the columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from reports.phrasing import seconds, share, times

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("jct_mean_s", "Mean JCT", "time"),
    ("jct_p50_s", "P50", "time"),
    ("jct_p90_s", "P90", "time"),
    ("jct_p95_s", "P95", "time"),
    ("jct_p99_s", "P99", "time"),
    ("jct_steady_mean_s", "Steady mean", "time"),
    ("throughput_jobs_per_s", "Jobs/s", "rate"),
    ("usd_per_job", "USD per job", "rate"),
    ("ttft_mean_s", "TTFT", "time"),
    ("ttft_p95_s", "TTFT P95", "time"),
    ("tpot_mean_s", "TPOT, s", "rate"),
    ("device_hit_ratio", "Device hits", "share"),
    ("dram_hit_ratio", "DRAM hits", "share"),
    ("ssd_hit_ratio", "SSD hits", "share"),
    ("computed_ratio", "Computed", "share"),
    ("hit_bound_ratio", "Hit bound", "share"),
    ("pinned_ratio", "Pinned", "share"),
    ("queue_mean_s", "Bubble per job", "time"),
    ("slowdown_mean", "Slowdown", "rate"),
    ("jain_index", "Fairness", "rate"),
    ("preemptions", "Preemptions", "count"),
    ("failed_turns", "Failed turns", "count"),
    ("drain_ratio", "Drain", "share"),
    ("backlog_growth", "Backlog growth", "rate"),
)
FORMATS: dict[str, Callable[[float], str]] = {
    "time": seconds,
    "rate": lambda v: "–" if math.isnan(v) else f"{v:.3g}",
    "share": share,
    "count": lambda v: "–" if math.isnan(v) else f"{int(v):,}",
}


def columns(cells: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return the columns, without the cost if the GPU has no price."""
    priced = not cells.empty and cells["usd_per_job"].notna().any()
    return [column for column in COLUMNS if priced or column[0] != "usd_per_job"]


def rows(cells: pd.DataFrame, baseline: str) -> list[dict[str, Any]]:
    """Return a row per cell. Columns are sorted by `sort`."""
    shown = columns(cells)
    records = [{str(k): v for k, v in r.items()} for r in cells.to_dict("records")]
    base = {(r["load"], r["seed"]): r["jct_mean_s"] for r in records if r["variant"] == baseline}
    rows = []
    for record in records:
        values = [
            {"text": FORMATS[kind](record[key]), "sort": _sortable(record[key])}
            for key, _, kind in shown
        ]
        ratio = base.get((record["load"], record["seed"]), math.nan) / record["jct_mean_s"]
        against = "–" if math.isnan(ratio) else times(ratio)
        values.insert(1, {"text": against, "sort": _sortable(ratio)})
        rows.append({**record, "values": values, "sort_load": _sortable(record["jps"])})
    return rows


def _sortable(value: float | None) -> float:
    return -1.0 if value is None or math.isnan(value) else float(f"{value:.6g}")
