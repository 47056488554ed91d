"""Formats the table of speed-ups over the baseline, by variant and load.

In: points. Out: rows of cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from reports.answer.verdict import Answer
from reports.statistics.bootstrap import interval
from reports.statistics.capacities import some_seeds
from reports.statistics.points import Point
from reports.statistics.seeds_needed import DIFFERENCE
from servers.basics.phrasing import counted, seconds

NO_MARKS = {"hollow": False, "best": False}
MIN_GAIN = 1.005
"""Smaller speed-ups round to 1.00 and are not marked as the fastest."""
MIN_FULL_TINT = math.log(1.5)
"""The largest speed-up of a grid has the strongest tint if it is at least this."""


def grid(points: Sequence[Point], answer: Answer, baseline: str) -> dict[str, Any] | None:
    """Return the loads and rows of the table; None if no variant is compared with the baseline."""
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
            _grid_cell(at.get((variant, load)), best[load], full, baseline, load in stable)
            for load in loads
        ]
        bound = any(p.bound for p in points if p.variant == variant)
        rows.append({"variant": variant, "bound": bound, "cells": cells})
    here = answer.load
    return {"loads": [(load.removesuffix(" jobs/s"), load == here) for load in loads], "rows": rows}


def _rank(point: Point) -> tuple[bool, bool, float]:
    return point.unstable or point.failed_gates, point.bound, point.jct_mean_s.value


def _grid_cell(
    point: Point | None, best: Point, full: float, baseline: str, is_baseline_stable: bool
) -> dict[str, Any]:
    if point is None:
        return {"text": "–", "title": "no result", "tint": 0, "kind": "none", **NO_MARKS}
    if point.unstable:
        title = f"{point.variant}, {point.load}: no steady state{some_seeds(point.without_steady)}"
        loss = (
            {"kind": "slower", "tint": 100} if is_baseline_stable else {"kind": "none", "tint": 0}
        )
        return {"text": "unstable", "title": title, **loss, **NO_MARKS}
    title = f"{point.variant}, {point.load}: mean {seconds(point.jct_mean_s.value)}"
    has_gain = best.baseline_without_steady is not None and best.variant != baseline
    if best.against is not None:
        has_gain = best.against.mean.value > MIN_GAIN
    common = {"hollow": point.saturated, "best": point is best and has_gain}
    if point.baseline_without_steady is not None:
        lacks = f"{baseline} has no steady state{some_seeds(point.baseline_without_steady)}"
        return {"text": "stable", "title": f"{title}; {lacks}", "tint": 100, "kind": "faster",
                **common}  # fmt: skip
    if point.against is None and point.variant != baseline:
        return {"text": "–", "title": f"{title}, no ratio", "tint": 0, "kind": "none", **common}
    if point.against is None:
        return {"text": "1", "title": title, "tint": 0, "kind": "base", **common}
    gain = point.against.mean
    tint = abs(math.log(gain.value)) / full
    kind = "even" if not gain.differs_from_one else "faster" if gain.value > 1 else "slower"
    return {
        "text": f"{gain.value:.2f}",
        "title": ", ".join([title, interval(gain), *_more(point, kind)]),
        "tint": round(100 * tint),
        "kind": kind,
        **common,
    }


def _more(point: Point, kind: str) -> list[str]:
    missing = point.against.seeds_missing if point.against is not None else math.nan
    marks = ["past saturation"] if point.saturated else []
    if kind == "even" and math.isfinite(missing) and missing >= 1:
        seeds = counted(math.ceil(missing), "more seed")
        marks.append(f"a difference of {DIFFERENCE:.0%} needs {seeds}")
    return marks
