"""Builds the page's tables of all cells, with the metrics of docs/reference/metrics.md, and of the
variants at the load of the answer: fairness, background, routers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from reports.answer.verdict import Answer
from reports.metrics.background import BACKGROUND
from reports.metrics.cells import amounts_of, rows_of
from reports.metrics.fairness import FAIRNESS
from reports.metrics.measure import METRICS
from reports.metrics.metric import NONE, Group, Metric
from reports.metrics.routing import ROUTING
from reports.numbers import DASH, digits
from reports.statistics.points import Point
from reports.table import Table, TableCell, TableRow, texts
from servers.basics.phrasing import seconds, times
from servers.records.settings import RouterRecord, SplitRecord
from servers.records.sweep import VariantRecord


class Number(NamedTuple):
    text: str
    sort: float


class CellTable(NamedTuple):
    columns: list[Metric]
    rows: list[dict[str, Any]]
    """The columns of `cells.csv`, with the numbers of `columns` and the key by which the load is
    sorted."""


def cell_table(cells: pd.DataFrame, baseline: str) -> CellTable:
    """Return a row per cell, with the columns that have a number in some cell. The ratio to the
    baseline follows the mean JCT."""
    shown = [m for m in METRICS.values() if m.title and m.in_cells and m.column in cells]
    shown = [m for m in shown if cells[m.column].notna().any()]
    meaning = f"Mean JCT of {baseline} divided by the mean JCT of the cell, with the same seed."
    versus = Metric("versus", NONE, title=f"vs {baseline}").means(meaning)
    columns = [each for m in shown for each in ([m, versus] if m.column == "jct_mean_s" else [m])]
    records = rows_of(cells)
    base = {_draw(r): r["jct_mean_s"] for r in records if r["variant"] == baseline}
    rows = []
    for record, amount in zip(records, amounts_of(cells), strict=True):
        ratio = base.get(_draw(record), math.nan) / record["jct_mean_s"]
        text = DASH if math.isnan(ratio) else times(ratio)
        numbers = [
            Number(text, _sortable(ratio))
            if m is versus
            else Number(m.unit.show(record[m.column]), _sortable(record[m.column]))
            for m in columns
        ]
        rows.append({**record, "numbers": numbers, "sort_load": _sortable(amount)})
    return CellTable(columns, rows)


def _draw(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["load"], record["seed"], record.get("repeat")


def _sortable(value: float | None) -> float:
    return -1.0 if value is None or math.isnan(value) else float(f"{value:.6g}")


def fairness(points: Sequence[Point], load: str | None) -> Table | None:
    def first(point: Point) -> dict[str, float]:
        mean_s = point.jct_mean_s.value
        return {"jct_mean_s": mean_s, "jct_over_bound": mean_s / point.lower_bound_s}

    return _pooled(_at(points, load), FAIRNESS, first)


def background(points: Sequence[Point], load: str | None) -> Table | None:
    return _pooled([p for p in _at(points, load) if p.has_background], BACKGROUND)


def _at(points: Sequence[Point], load: str | None) -> list[Point]:
    return [p for p in points if p.load == load and not p.unstable]


def _pooled(
    points: Sequence[Point],
    group: Group,
    first: Callable[[Point], Mapping[str, float]] = lambda _: {},
) -> Table | None:
    """Return a row per variant: `first`, by column, and the metrics of the group that have a
    heading. None without points."""
    if not points:
        return None
    metrics = [METRICS[column] for column in first(points[0])]
    metrics += [metric for metric in group.metrics if metric.pool and metric.title]
    numbers = [{**point.pooled, **first(point)} for point in points]
    rows = [
        texts(point.variant, [m.unit.show(own[m.column]) for m in metrics], bool(point.reference))
        for point, own in zip(points, numbers, strict=True)
    ]
    return Table(["Variant", *(metric.title for metric in metrics)], rows)


class Routers(NamedTuple):
    grids: tuple[tuple[str, Table], ...]
    """A number for each router and policy, by caption."""
    turns: Table
    """Where turns go at the load of the answer."""


def routers(
    variants: Sequence[VariantRecord], points: Sequence[Point], answer: Answer
) -> Routers | None:
    """Return the tables; None if the run has no routers."""
    names = [_split(v.name, v.router, v.disaggregate) for v in variants if v.router]
    here = [p for p in _at(points, answer.load) if not p.failed_gates]
    routed = [p for p in here if ROUTING.columns[0] in p.pooled]
    if not names or (turns := _pooled(routed, ROUTING)) is None:
        return None
    means = {point.variant: point.jct_mean_s.value for point in here}
    sustained = {c.variant: c.load.value for c in answer.capacities if c.load}
    grids = (
        (
            f"Mean JCT at {answer.load}, in seconds",
            _grid(names, means, lambda mean_s: seconds(mean_s).removesuffix(" s"), min),
        ),
        (f"Capacity, in {_unit(answer)}", _grid(names, sustained, digits, max)),
    )
    return Routers(tuple((caption, grid) for caption, grid in grids if grid), turns)


def _unit(answer: Answer) -> str:
    return answer.capacities[0].ladder.unit if answer.capacities else ""


def _split(name: str, of: RouterRecord, split: SplitRecord | None) -> tuple[str, str]:
    """Return the policy of a variant `policy@router` or `policy@router@1P1D`, and the rest."""
    router = of.name if split is None else f"{of.name}@{split.name}"
    return name.removesuffix(f"@{router}"), router


def _grid(
    names: Sequence[tuple[str, str]],
    values: Mapping[str, float],
    show: Callable[[float], str],
    best_of: Callable[..., float],
) -> Table | None:
    if not values:
        return None
    best = show(best_of(values.values()))
    policies = list(dict.fromkeys(policy for policy, _ in names))
    rows = []
    for router in dict.fromkeys(router for _, router in names):
        shown = [values.get(f"{policy}@{router}") for policy in policies]
        cells = [DASH if value is None else show(value) for value in shown]
        rows.append(TableRow(router, [TableCell(text, text == best) for text in cells]))
    return Table(["Router", *policies], rows)
