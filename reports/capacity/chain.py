"""Chooses the loads under which one variant runs with one seed, until its capacity is found.

In: the outcomes so far. Out: the next load, or the capacity. The path of a search depends only on
the outcomes along it, not on the order in which cells finish or on other cells in the run folder.
An interrupted search therefore runs the same cells as an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from reports.capacity import estimate
from reports.capacity.estimate import Capacity, Outcome
from reports.loads import Ends, Ladder

LONGEST_STRIDE = 14
"""In rungs; about a factor of two."""
SHORTEST_STRIDE = 2
UNSTABLE_STRIDE = 5
"""In rungs, from a load at which the queue grows, where the distance to the capacity is unknown."""
EDGE = 0.2
"""A load between two others keeps at least this share of their distance from each, so that every
cell narrows the search."""
EDGE_UNSTABLE = 0.35
"""The same if the higher load is unstable, so that only the lower one locates the capacity."""
SHARPNESS = 4.0
"""How fast JCTs grow near the capacity, if only one cell shows it (`_load`)."""
NEAR, FLAT = 3.0, 3.0
"""A statistic that is close to its limit even on an idle machine may grow slowly. The limit is then
several times further than the few rungs within which `_beyond` expects it."""
FAR = 1000.0
"""A factor larger than every stride."""


def next_load(
    known: Mapping[float, Outcome],
    given: Iterable[float],
    start: float,
    ends: Ends,
    idle: float,
) -> float | Capacity:
    """Return the next load to run, or the capacity once it is known.

    `known` has the outcomes of all finished cells by load. `given` are finished loads that run in
    any case. `start` is where the search starts without any. `idle` is the tightest ratio of
    the SLO on an idle machine.
    """
    path = [known[load] for load in given]
    while (k := _next_rung(path, start, ends, idle)) is not None:
        if (load := ends.ladder.rung(k)) not in known:
            return load
        path.append(known[load])
    return estimate.capacity(path, ends)


def _next_rung(path: list[Outcome], start: float, ends: Ends, idle: float) -> int | None:
    below, above = estimate.bracket(path)
    if below is not None and above is not None:
        return _within(ends.ladder, below, above, idle)
    if below is not None:
        wanted = _upwards(ends.ladder, below, path, idle)
    elif above is not None:
        wanted = _downwards(ends.ladder, above, path, idle)
    else:
        wanted = round(ends.ladder.position(start))
    k = min(max(wanted, ends.lowest), ends.highest)
    return None if any(outcome.load == ends.ladder.rung(k) for outcome in path) else k


def _within(ladder: Ladder, below: Outcome, above: Outcome, idle: float) -> int | None:
    if estimate.locates(ladder, below, above):
        return None
    rungs = ladder.rungs_between(below.load, above.load)
    low, high = ladder.position(below.load), ladder.position(above.load)
    edge = (EDGE if above.tightest is not None else EDGE_UNSTABLE) * (high - low)
    place = min(max(ladder.position(_between(below, above, idle)), low + edge), high - edge)
    return min(max(math.floor(place), rungs[0]), rungs[-1])


def _upwards(ladder: Ladder, below: Outcome, path: list[Outcome], idle: float) -> int:
    low = ladder.position(below.load)
    place = min(ladder.position(_beyond(below, idle)), low + LONGEST_STRIDE)
    straight = min(ladder.position(_straight_on(below, path)), low + LONGEST_STRIDE)
    if place - low <= NEAR and straight - low > FLAT * NEAR:
        place = (low + straight) / 2
    return max(math.ceil(place), math.floor(low) + SHORTEST_STRIDE)


def _straight_on(below: Outcome, path: list[Outcome]) -> float:
    """Return the load at which the SLO would just be met if the statistic went on to grow, on
    logarithmic axes, as it did up to the highest sustained load."""
    lower = [o for o in path if o.load < below.load and o.tightest]
    if not lower or not below.tightest:
        return below.load
    last = max(lower, key=lambda o: o.load)
    growth = math.log(below.tightest / (last.tightest or 1)) / math.log(below.load / last.load)
    if growth <= 0:
        return below.load * FAR
    return below.load * math.exp(min(-math.log(below.tightest) / growth, math.log(FAR)))


def _downwards(ladder: Ladder, above: Outcome, path: list[Outcome], idle: float) -> int:
    """Return a rung below all loads of the path, none of which is sustained. The stride is at least
    as long as the span of the loads that are known to be too high."""
    high = ladder.position(above.load)
    span = ladder.position(max(outcome.load for outcome in path)) - high
    if above.tightest is None:
        return math.floor(high - max(UNSTABLE_STRIDE, span))
    place = max(ladder.position(_beyond(above, idle)), high - LONGEST_STRIDE)
    return math.floor(min(place, high - max(SHORTEST_STRIDE, span)))


def _load(outcome: Outcome, idle: float) -> float | None:
    """Return (load ÷ limit)^s of a queue whose JCT is an idle machine's ÷ (1 - (load ÷ limit)^s),
    which fits the measured growth of JCTs for some limit and sharpness s. None if the cell is
    unstable, or not slower than an idle machine."""
    if outcome.tightest is None or outcome.tightest <= idle:
        return None
    return 1 - idle / outcome.tightest


def _between(below: Outcome, above: Outcome, idle: float) -> float:
    low, high = _load(below, idle), _load(above, idle)
    if low is None or high is None or not low < 1 - idle < high:
        return estimate.crossing(below, above) or _beyond(below, idle)
    share = math.log((1 - idle) / low) / math.log(high / low)
    return below.load * math.exp(share * math.log(above.load / below.load))


def _beyond(outcome: Outcome, idle: float) -> float:
    """Return the load at which the SLO would just be met, judging from one cell."""
    load = _load(outcome, idle)
    if load is None or idle >= 1:
        return outcome.load * (FAR if outcome.sustained else 1 / FAR)
    return outcome.load * math.exp(math.log((1 - idle) / load) / SHARPNESS)
