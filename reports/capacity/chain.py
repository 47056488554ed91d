"""Chooses the rates at which one variant runs with one seed, until its capacity is found.

In: the outcomes so far. Out: the next rate, or the capacity. The path of a search depends only on
the outcomes along it, not on the order in which cells finish or on other cells in the run folder.
An interrupted search therefore runs the same cells as an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from reports.capacity.estimate import (
    Capacity,
    Outcome,
    bracket,
    capacity,
    crossing,
    rungs_between,
)
from reports.capacity.ladder import Ends, position, rung

LONGEST_STRIDE = 14
"""In rungs; about a factor of two."""
SHORTEST_STRIDE = 2
UNSTABLE_STRIDE = 5
"""In rungs, from a rate at which the queue grows, where the distance to the capacity is unknown."""
EDGE = 0.2
"""A rate between two others keeps at least this share of their distance from each, so that every
cell narrows the search."""
EDGE_UNSTABLE = 0.35
"""The same if the higher rate is unstable, so that only the lower one locates the capacity."""
SHARPNESS = 4.0
"""How fast JCTs grow near the capacity, if only one cell shows it (`_load`)."""
FAR = 1000.0
"""A factor larger than every stride."""


def next_rate(
    known: Mapping[float, Outcome],
    given: Iterable[float],
    start_jps: float,
    ends: Ends,
    idle: float,
) -> float | Capacity:
    """Return the next rate to run, or the capacity.

    `known` has the outcomes of all finished cells by rate. `given` are finished rates that run in
    any case. `start_jps` is where the search starts without any. `idle` is the tightest ratio of
    the SLO on an idle machine.
    """
    path = [known[jps] for jps in given]
    while (k := _next_rung(path, start_jps, ends, idle)) is not None:
        if (jps := rung(k)) not in known:
            return jps
        path.append(known[jps])
    return capacity(path, ends)


def _next_rung(path: list[Outcome], start_jps: float, ends: Ends, idle: float) -> int | None:
    below, above = bracket(path)
    if below is not None and above is not None:
        return _within(below, above, idle)
    if below is not None:
        wanted = _upwards(below, idle)
    elif above is not None:
        wanted = _downwards(above, path, idle)
    else:
        wanted = round(position(start_jps))
    k = min(max(wanted, ends.lowest), ends.highest)
    return None if any(outcome.jps == rung(k) for outcome in path) else k


def _within(below: Outcome, above: Outcome, idle: float) -> int | None:
    rungs = rungs_between(below.jps, above.jps)
    if not rungs:
        return None
    low, high = position(below.jps), position(above.jps)
    edge = (EDGE if above.tightest is not None else EDGE_UNSTABLE) * (high - low)
    place = min(max(position(_between(below, above, idle)), low + edge), high - edge)
    return min(max(math.floor(place), rungs[0]), rungs[-1])


def _upwards(below: Outcome, idle: float) -> int:
    low = position(below.jps)
    place = min(position(_beyond(below, idle)), low + LONGEST_STRIDE)
    return max(math.ceil(place), math.floor(low) + SHORTEST_STRIDE)


def _downwards(above: Outcome, path: list[Outcome], idle: float) -> int:
    """Return a rung below all rates of the path, none of which is sustained. The stride is at least
    as long as the span of the rates that are known to be too high."""
    high = position(above.jps)
    span = position(max(outcome.jps for outcome in path)) - high
    if above.tightest is None:
        return math.floor(high - max(UNSTABLE_STRIDE, span))
    place = max(position(_beyond(above, idle)), high - LONGEST_STRIDE)
    return math.floor(min(place, high - max(SHORTEST_STRIDE, span)))


def _load(outcome: Outcome, idle: float) -> float | None:
    """Return (rate ÷ limit)^s of a queue whose JCT is an idle machine's ÷ (1 - (rate ÷ limit)^s),
    which fits the measured growth of JCTs for some limit and sharpness s. None if the cell is
    unstable, or not slower than an idle machine."""
    if outcome.tightest is None or outcome.tightest <= idle:
        return None
    return 1 - idle / outcome.tightest


def _between(below: Outcome, above: Outcome, idle: float) -> float:
    low, high = _load(below, idle), _load(above, idle)
    if low is None or high is None or not low < 1 - idle < high:
        return crossing(below, above) or _beyond(below, idle)
    share = math.log((1 - idle) / low) / math.log(high / low)
    return below.jps * math.exp(share * math.log(above.jps / below.jps))


def _beyond(outcome: Outcome, idle: float) -> float:
    """Return the rate at which the SLO would just be met, judging from one cell."""
    load = _load(outcome, idle)
    if load is None or idle >= 1:
        return outcome.jps * (FAR if outcome.sustained else 1 / FAR)
    return outcome.jps * math.exp(math.log((1 - idle) / load) / SHARPNESS)
