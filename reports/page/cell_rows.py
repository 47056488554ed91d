"""Builds the page's table of all cells, with the metrics of docs/reference/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from reports.metrics.cells import amounts_of
from reports.metrics.goodput import GOODPUT
from reports.metrics.measure import METRICS
from reports.metrics.metric import NONE, Metric
from reports.numbers import DASH
from servers.basics.phrasing import times


class Number(NamedTuple):
    text: str
    sort: float


class CellTable(NamedTuple):
    columns: list[Metric]
    rows: list[dict[str, Any]]
    """The columns of `cells.csv`, with the numbers of `columns` and the key by which the load is
    sorted."""


def cell_table(cells: pd.DataFrame, baseline: str) -> CellTable:
    """Return a row per cell. The ratio to the baseline follows the mean JCT; there is no cost if
    the GPU has no price."""
    priced = not cells.empty and cells["usd_per_job"].notna().any()
    shown = [m for m in METRICS.values() if m.title and m.in_cells]
    shown = [m for m in shown if m.column in cells or m not in GOODPUT.metrics]
    shown = [m for m in shown if priced or m.column != "usd_per_job"]
    meaning = f"Mean JCT of {baseline} divided by the mean JCT of the cell, with the same seed."
    columns = [shown[0], Metric("", NONE, title=f"vs {baseline}").means(meaning), *shown[1:]]
    records = [{str(k): v for k, v in r.items()} for r in cells.to_dict("records")]
    base = {_draw(r): r["jct_mean_s"] for r in records if r["variant"] == baseline}
    rows = []
    for record, amount in zip(records, amounts_of(cells), strict=True):
        numbers = [Number(m.unit.show(v := record[m.column]), _sortable(v)) for m in shown]
        ratio = base.get(_draw(record), math.nan) / record["jct_mean_s"]
        numbers.insert(1, Number(DASH if math.isnan(ratio) else times(ratio), _sortable(ratio)))
        rows.append({**record, "numbers": numbers, "sort_load": _sortable(amount)})
    return CellTable(columns, rows)


def _draw(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["load"], record["seed"], record.get("repeat")


def _sortable(value: float | None) -> float:
    return -1.0 if value is None or math.isnan(value) else float(f"{value:.6g}")
