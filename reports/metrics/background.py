"""Measures the background requests of a cell (docs/reference/metrics.md, "Background").

In: the requests of a cell, and the time in which its jobs are measured. Out: columns of
`cells.csv`. A request that has not finished when its cell ends counts with the time until then, so
that a schedule cannot hide that it starves the background.
"""

from __future__ import annotations

import math

import numpy as np

from reports.metrics.steady import Span
from reports.run_folder.read import Cell
from reports.run_folder.turns import Column, Turns, failed_turns
from servers.records.done import BackgroundEnd

LATENCIES = ("background_latency_mean_s", "background_latency_p95_s")
MEAN_TTFT, P95_TTFT = "background_ttft_mean_s", "background_ttft_p95_s"
BACKGROUND = (
    *(MEAN_TTFT, P95_TTFT, *LATENCIES),
    *("background_requests", "background_unfinished"),
    *("background_served_ratio", "background_throughput_per_s"),
)
"""Columns of cells with a background."""


def background(cell: Cell, requests: Turns, span: Span) -> dict[str, float]:
    """Return the columns; none in a cell without a background, NaN without a measured time."""
    if cell.config.background is None:
        return {}
    failed = int(failed_turns(requests).sum())
    if not span.length_s > 0:
        return {**dict.fromkeys(BACKGROUND, math.nan), "background_failed": failed}
    good = ~failed_turns(requests)
    done = {name: values[good] for name, values in requests.items()}
    due_s, end_s = done["scheduled_at_s"], done["finished_at_s"]
    inside = _inside(due_s, span)
    end = cell.done.background or BackgroundEnd(until_s=math.nan, unfinished=[])
    until_s = end.until_s
    open_s = np.array(end.unfinished, dtype=float).reshape(-1, 2)
    open_s = open_s[_inside(open_s[:, 0], span)]
    first_s = np.where(np.isnan(open_s[:, 1]), until_s, open_s[:, 1])
    latency_s = np.append((end_s - due_s)[inside], until_s - open_s[:, 0])
    ttft_s = np.append((done["first_token_at_s"] - due_s)[inside], first_s - open_s[:, 0])
    finished, arrived = int(_inside(end_s, span).sum()), len(latency_s)
    numbers = (*_mean_and_p95(ttft_s), *_mean_and_p95(latency_s), arrived, len(open_s))
    served = (finished / arrived if arrived else math.nan, finished / span.length_s)
    values = dict(zip(BACKGROUND, (*numbers, *served), strict=True))
    return {**values, "background_failed": failed}


def _inside(times_s: Column, span: Span) -> Column:
    return (times_s >= span.begin_s) & (times_s < span.end_s)


def _mean_and_p95(times_s: Column) -> tuple[float, float]:
    """Return NaN without times. Answers that are not streamed have no first token."""
    known = times_s[~np.isnan(times_s)]
    if not len(known):
        return math.nan, math.nan
    return float(known.mean()), float(np.percentile(known, 95))
