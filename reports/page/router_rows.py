"""Formats the page's tables of routers: policies against routers, and how each distributes turns.

In: the variants of `sweep.json`, points and capacities. Out: rows of text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reports.answer.verdict import Answer
from reports.statistics.points import Point
from servers.basics.phrasing import seconds, share
from servers.records.settings import RouterRecord, SplitRecord
from servers.records.sweep import VariantRecord

HEADS = (
    *("Busiest ÷ mean", "Memory", "Migrations per job", "Hits lost"),
    *("Turns held", "Mean hold", "Longest hold"),
)
"""Headings of the numbers of `Row`."""
DASH = "–"


class Row(NamedTuple):
    variant: str
    numbers: tuple[str, ...]


class Cell(NamedTuple):
    text: str
    best: bool


class Line(NamedTuple):
    """A router with a number for each policy."""

    router: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    caption: str
    policies: tuple[str, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Routers:
    grids: tuple[Grid, ...]
    rows: tuple[Row, ...]
    """At the load of the answer."""


def routers(
    variants: Sequence[VariantRecord], points: Sequence[Point], answer: Answer
) -> Routers | None:
    """Return the tables; None if the run has no routers."""
    names = [_split(v.name, v.router, v.disaggregate) for v in variants if v.router]
    here = {
        p.variant: p
        for p in points
        if p.load == answer.load and not p.unstable and not p.failed_gates
    }
    rows = tuple(_row(point) for point in here.values() if point.routing)
    if not names or not rows:
        return None
    means = {name: point.jct_mean_s.value for name, point in here.items()}
    sustained = {c.variant: c.jobs_per_s.value for c in answer.capacities if c.jobs_per_s}
    grids = [
        _grid(f"Mean JCT at {answer.load}, in seconds", names, means, _seconds, min),
        _grid("Capacity, in jobs/s", names, sustained, _rate, max),
    ]
    return Routers(tuple(grid for grid in grids if grid is not None), rows)


def _split(name: str, of: RouterRecord, split: SplitRecord | None) -> tuple[str, str]:
    """Return the policy of a variant `policy@router` or `policy@router@1P1D`, and the rest."""
    router = of.name if split is None else f"{of.name}@{split.name}"
    return name.removesuffix(f"@{router}"), router


def _grid(
    caption: str,
    names: Sequence[tuple[str, str]],
    values: Mapping[str, float],
    show: Callable[[float], str],
    best_of: Callable[..., float],
) -> Grid | None:
    if not values:
        return None
    best = show(best_of(values.values()))
    policies = tuple(dict.fromkeys(policy for policy, _ in names))
    lines = []
    for router in dict.fromkeys(router for _, router in names):
        shown = [values.get(f"{policy}@{router}") for policy in policies]
        texts = [DASH if value is None else show(value) for value in shown]
        lines.append(Line(router, tuple(Cell(text, text == best) for text in texts)))
    return Grid(caption, policies, tuple(lines))


def _rate(value: float) -> str:
    return f"{value:.3g}"


def _seconds(value: float) -> str:
    return seconds(value).removesuffix(" s")


def _row(point: Point) -> Row:
    of = point.routing
    shown = (
        _number(of["replica_imbalance"]),
        _number(of["memory_imbalance"]),
        _number(of["migrations_per_job"]),
        share(of["migration_lost_ratio"]),
        share(of["held_turn_ratio"]),
        seconds(of["held_mean_s"]),
        seconds(of["held_max_s"]),
    )
    return Row(point.variant, shown)


def _number(value: float) -> str:
    return DASH if math.isnan(value) else f"{value:.2f}"
