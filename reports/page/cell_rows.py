"""Formats the page's table of all cells. docs/reference/metrics.md defines the columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from servers.basics.phrasing import seconds, share, times


class Column(NamedTuple):
    key: str
    """Its column in `cells.csv`."""
    title: str
    kind: str
    """Key of `FORMATS`."""
    meaning: str


COLUMNS = (
    Column("jct_mean_s", "Mean JCT", "time", "Mean job completion time."),
    Column("jct_p50_s", "P50", "time", "Half of the jobs finish within this time."),
    Column("jct_p90_s", "P90", "time", "90% of the jobs finish within this time."),
    Column("jct_p95_s", "P95", "time", "95% of the jobs finish within this time."),
    Column("jct_p99_s", "P99", "time", "99% of the jobs finish within this time."),
    Column(
        *("jct_steady_mean_s", "Steady mean", "time"),
        "Mean JCT without the first and the last fifth of the jobs; for a stream, the mean JCT.",
    ),
    Column("throughput_jobs_per_s", "Jobs/s", "rate", "Jobs that finish per second."),
    Column(
        *("usd_per_job", "USD per job", "rate"),
        "Price of the GPUs for the time of the cell, divided by its jobs.",
    ),
    Column(
        *("ttft_mean_s", "TTFT", "time"),
        "Mean time from sending a turn to its first output token.",
    ),
    Column(
        *("ttft_p95_s", "TTFT P95", "time"),
        "95% of the turns have their first output token within this time.",
    ),
    Column("tpot_mean_s", "TPOT, s", "rate", "Mean time between the output tokens of a turn."),
    Column(
        *("device_hit_ratio", "Device hits", "share"),
        "Share of prompt tokens whose KV was on the device.",
    ),
    Column(
        *("dram_hit_ratio", "DRAM hits", "share"),
        "Share of prompt tokens whose KV was reloaded from DRAM.",
    ),
    Column(
        *("ssd_hit_ratio", "SSD hits", "share"),
        "Share of prompt tokens whose KV was reloaded from SSD.",
    ),
    Column("computed_ratio", "Computed", "share", "Share of prompt tokens that were computed."),
    Column(
        *("hit_bound_ratio", "Hit bound", "share"),
        "Largest share of prompt tokens that a cache of any size could hit.",
    ),
    Column(
        *("pinned_ratio", "Pinned", "share"),
        "Share of the KV cache that pins held, over the time of the cell.",
    ),
    Column(
        *("queue_mean_s", "Bubble per job", "time"),
        "Mean time that the turns of a job waited in the queue.",
    ),
    Column(
        *("jct_over_bound", "JCT over bound", "rate"),
        "Mean JCT divided by a lower bound that no schedule of these jobs can beat.",
    ),
    Column(
        *("slowdown_mean", "Slowdown", "rate"),
        "Mean of each job's JCT divided by the least time that it needs alone on the machine.",
    ),
    Column(
        *("slowdown_p99", "Slowdown P99", "rate"),
        "99% of the jobs have at most this slowdown.",
    ),
    Column(*("slowdown_max", "Slowdown max.", "rate"), "The largest slowdown of a job."),
    Column(
        *("queue_max_s", "Longest wait", "time"),
        "The longest time that a turn waited for its first admission.",
    ),
    Column(
        *("jct_longest_tenth_s", "JCT of longest", "time"),
        "Mean JCT of the tenth of the jobs that need the most time alone.",
    ),
    Column("jain_index", "Fairness", "rate", "Jain's index: 1 if all jobs are slowed equally."),
    Column(
        *("preemptions", "Preemptions", "count"),
        "Number of times that a running turn lost its KV.",
    ),
    Column("failed_turns", "Failed turns", "count", "Turns that ended with an error."),
    Column(
        *("drain_ratio", "Drain", "share"),
        "Share of the time of the cell after the last arrival.",
    ),
    Column(
        *("backlog_growth", "Backlog growth", "rate"),
        "Jobs that each arriving job adds to the backlog.",
    ),
)
FORMATS: dict[str, Callable[[float], str]] = {
    "time": seconds,
    "rate": lambda v: "–" if math.isnan(v) else f"{v:.3g}",
    "share": share,
    "count": lambda v: "–" if math.isnan(v) else f"{int(v):,}",
}


def columns(cells: pd.DataFrame) -> list[Column]:
    """Return the columns; there is no cost if the GPU has no price."""
    priced = not cells.empty and cells["usd_per_job"].notna().any()
    return [column for column in COLUMNS if priced or column.key != "usd_per_job"]


def against(baseline: str) -> Column:
    """Return the column after the mean JCT."""
    meaning = f"Mean JCT of {baseline} divided by the mean JCT of the cell, with the same seed."
    return Column("", f"vs {baseline}", "rate", meaning)


def _draw(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["load"], record["seed"], record.get("repeat")


def rows(cells: pd.DataFrame, baseline: str) -> list[dict[str, Any]]:
    """Return a row per cell. Columns are sorted by `sort`."""
    shown = columns(cells)
    records = [{str(k): v for k, v in r.items()} for r in cells.to_dict("records")]
    base = {_draw(r): r["jct_mean_s"] for r in records if r["variant"] == baseline}
    rows = []
    for record in records:
        values = [
            {
                "text": FORMATS[column.kind](record[column.key]),
                "sort": _sortable(record[column.key]),
            }
            for column in shown
        ]
        ratio = base.get(_draw(record), math.nan) / record["jct_mean_s"]
        text = "–" if math.isnan(ratio) else times(ratio)
        values.insert(1, {"text": text, "sort": _sortable(ratio)})
        rows.append({**record, "values": values, "sort_load": _sortable(record["jps"])})
    return rows


def _sortable(value: float | None) -> float:
    return -1.0 if value is None or math.isnan(value) else float(f"{value:.6g}")
