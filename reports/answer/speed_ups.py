"""Formats the table of speed-ups over the baseline, by variant and load.

In: points. Out: a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.answer.verdict import Answer
from reports.loads import RATES
from reports.numbers import DASH
from reports.statistics.bootstrap import interval
from reports.statistics.capacities import some_seeds
from reports.statistics.points import Point
from reports.table import Table, TableCell, TableRow
from servers.basics.phrasing import seconds

PER_S = f" {RATES.unit}"
MIN_GAIN = 1.005
"""Smaller speed-ups round to 1.00 and are not marked as the fastest."""
MIN_FULL_TINT = math.log(1.5)
"""The largest speed-up of a grid has the strongest tint if it is at least this."""


def grid(points: Sequence[Point], answer: Answer, baseline: str) -> Table | None:
    """Return a row per variant and a column per load; None if no variant is compared with the
    baseline."""
    if not any(p.against is not None or p.baseline_without_steady is not None for p in points):
        return None
    stable = {p.load for p in points if p.variant == baseline and not p.unstable}
    loads = list(dict.fromkeys(p.load for p in points))
    at = {(p.variant, p.load): p for p in points}
    gains = [abs(math.log(p.against.mean.value)) for p in points if p.against is not None]
    full = max([MIN_FULL_TINT, *gains])
    best = {load: min((p for p in points if p.load == load), key=_rank) for load in loads}
    rows = []
    for variant in dict.fromkeys(p.variant for p in points):
        cells = [
            _cell(at.get((variant, load)), best[load], full, baseline, load in stable)
            for load in loads
        ]
        is_reference = any(p.reference for p in points if p.variant == variant)
        rows.append(TableRow(variant, cells, is_reference))
    here = (answer.load or "").removesuffix(PER_S)
    return Table(["Variant", *(load.removesuffix(PER_S) for load in loads)], rows, here)


def _rank(point: Point) -> tuple[bool, bool, float]:
    has_none = point.unstable or point.failed_gates or point.is_mixed
    return has_none, bool(point.reference), point.jct_mean_s.value


def _cell(
    point: Point | None, best: Point, full: float, baseline: str, is_baseline_stable: bool
) -> TableCell:
    if point is None:
        return TableCell(DASH, kind="none", title="no result", hollow=False)
    if point.unstable:
        title = f"{point.variant}, {point.load}: no steady state{some_seeds(point.without_steady)}"
        kind, tint = ("slower", 100) if is_baseline_stable else ("none", 0)
        return TableCell("unstable", kind=kind, tint=tint, title=title, hollow=False)
    if point.is_mixed:
        title = f"{point.variant}, {point.load}: sustained{some_seeds(point.sustained)}"
        return TableCell(str(point.sustained), kind="none", title=title, hollow=False)
    title = f"{point.variant}, {point.load}: mean {seconds(point.jct_mean_s.value)}"
    has_gain = best.baseline_without_steady is not None and best.variant != baseline
    if best.against is not None:
        has_gain = best.against.mean.value > MIN_GAIN

    def cell(text: str, kind: str, title: str = title, tint: int = 0) -> TableCell:
        return TableCell(text, point is best and has_gain, kind, tint, title, point.saturated)

    if point.baseline_without_steady is not None:
        lacks = f"{baseline} has no steady state{some_seeds(point.baseline_without_steady)}"
        return cell("stable", "faster", f"{title}; {lacks}", 100)
    if point.against is None:
        is_base = point.variant == baseline
        return cell("1", "base") if is_base else cell(DASH, "none", f"{title}, no ratio")
    gain = point.against.mean
    kind = "even" if not gain.differs_from_one else "faster" if gain.value > 1 else "slower"
    tint = round(100 * (abs(math.log(gain.value)) / full))
    marks = ["past saturation"] if point.saturated else []
    more = ", ".join([title, interval(gain), *marks])
    return cell(f"{gain.value:.2f}", kind, more, tint)
