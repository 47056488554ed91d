"""Measures the background requests of a cell (docs/reference/metrics.md, "Background").

A request that has not finished when its cell ends counts with the time until then, so that a
schedule cannot hide that it starves the background.
"""

from __future__ import annotations

import math

import numpy as np

from reports.metrics.metric import (
    COUNT,
    SECONDS,
    SHARE,
    Facts,
    Group,
    Metric,
    Unit,
    Value,
    mean,
    of_variants,
    percentiles,
)
from reports.metrics.steady import FinishedWork
from reports.run_folder.turns import Column, failed_turns, finished
from servers.records.done import BackgroundEnd

LATENCIES = ("background_latency_mean_s", "background_latency_p95_s")
MEAN_TTFT, P95_TTFT = "background_ttft_mean_s", "background_ttft_p95_s"
REQUESTS, SERVED = "background_requests", "background_served_ratio"


def _background(facts: Facts) -> dict[str, Value]:
    """Return no columns in a cell without a background, and NaN without a measured time."""
    cell, requests, span = facts.cell, facts.requests, facts.span
    if cell.config.background is None:
        return {}
    failed = int(failed_turns(requests).sum())
    if not span.length_s > 0:
        return {**dict.fromkeys(BACKGROUND.columns, math.nan), "background_failed": failed}
    done = finished(requests)
    due_s, end_s = done["scheduled_at_s"], done["finished_at_s"]
    inside = _inside(due_s, span)
    end = cell.done.background or BackgroundEnd(until_s=math.nan, unfinished=[])
    until_s = end.until_s
    open_s = np.array(end.unfinished, dtype=float).reshape(-1, 2)
    open_s = open_s[_inside(open_s[:, 0], span)]
    first_s = np.where(np.isnan(open_s[:, 1]), until_s, open_s[:, 1])
    latency_s = np.append((end_s - due_s)[inside], until_s - open_s[:, 0])
    ttft_s = np.append((done["first_token_at_s"] - due_s)[inside], first_s - open_s[:, 0])
    ended, arrived = int(_inside(end_s, span).sum()), len(latency_s)
    numbers = (*_mean_and_p95(ttft_s), *_mean_and_p95(latency_s), arrived, len(open_s))
    served = (ended / arrived if arrived else math.nan, ended / span.length_s)
    return dict(zip(BACKGROUND.columns, (*numbers, *served, failed), strict=True))


def _inside(times_s: Column, span: FinishedWork) -> Column:
    return (times_s >= span.begin_s) & (times_s < span.end_s)


def _mean_and_p95(times_s: Column) -> tuple[float, float]:
    """Return NaN without times. Answers that are not streamed have no first token."""
    known = times_s[~np.isnan(times_s)]
    return mean(known), percentiles(known, (95,))[0]


BACKGROUND = Group(
    _background,
    (
        of_variants(MEAN_TTFT, SECONDS, "lower", "Mean TTFT").means(
            "Mean time from when a request is due to its first token.",
            "Without one, to the end of the cell.",
        ),
        of_variants(P95_TTFT, SECONDS, "lower", "P95 TTFT").means("P95 of the same."),
        of_variants(LATENCIES[0], SECONDS, "lower", "Mean latency").means(
            "Mean time from when a request is due to its last token."
        ),
        of_variants(LATENCIES[1], SECONDS, "lower", "P95 latency").means("P95 of the same."),
        Metric(REQUESTS, COUNT, pool="mean").means(
            "Requests that were due in the time of the cell, without failed ones."
        ),
        of_variants("background_unfinished", COUNT, "lower").means(
            "Requests that had not finished when the cell ended."
        ),
        of_variants(SERVED, SHARE, "higher", "Served").means(
            "Requests that finish in the time of the cell ÷ `background_requests`.",
            "Below 0.9, with at least 100 requests, a caveat says that they starve.",
        ),
        of_variants("background_throughput_per_s", Unit("1/s"), "higher", "Requests/s").means(
            "Requests that finish in the time of the cell, whenever they were due, per second."
        ),
        Metric("background_failed", COUNT, "lower").means(
            "Requests with an `error`, in the whole cell."
        ),
    ),
)
