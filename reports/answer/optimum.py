"""Compares the variants with what no schedule can beat (docs/design/statistics.md, "Lower bound").

In: points and capacities. Out: a sentence, or none if the bound is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.statistics.capacities import VariantCapacity
from reports.statistics.points import Point
from servers.basics.phrasing import listed, seconds, share
from servers.policies.base import UNLIMITED_KV

MOST_NAMES = 5


def distance_from_bound(points: Sequence[Point], load: str | None) -> list[str]:
    """Compare the mean JCTs at a load with the lower bound for the fastest variant's jobs."""
    here = [p for p in points if p.load == load and not (p.unstable or p.is_mixed)]
    known = sorted(
        (p for p in here if not math.isnan(p.lower_bound_s)), key=lambda p: p.jct_mean_s.value
    )
    if not known:
        return []
    first, *others = known
    multiples = [f"{first.variant} is {_times(first)} this bound"]
    multiples += [f"{p.variant} {_times(p)}" for p in others]
    return [
        f"At {load} no schedule of these jobs can have a mean JCT below"
        f" {seconds(first.lower_bound_s)}. {listed(multiples, at_most=MOST_NAMES)}."
    ]


def distance_from_rate_bound(
    capacities: Sequence[VariantCapacity], points: Sequence[Point]
) -> list[str]:
    """Compare the capacities with the rate above which no schedule has a steady state. Points
    measure different jobs, so the highest such rate counts."""
    rates = [p.rate_bound_jobs_per_s for p in points if not math.isnan(p.rate_bound_jobs_per_s)]
    known = [
        (c.variant, value.value)
        for c in capacities
        if (value := c.load) is not None and c.reference != UNLIMITED_KV
    ]
    if not rates or not known:
        return []
    known.sort(key=lambda pair: -pair[1])
    shares = [f"{name} {share(jobs_per_s / max(rates))}" for name, jobs_per_s in known]
    return [
        f"No schedule of such jobs sustains more than {max(rates):.3g} jobs/s. Capacities as shares"
        f" of this rate: {listed(shares, at_most=MOST_NAMES)}."
    ]


def _times(point: Point) -> str:
    """Return the multiple, rounded up, such as `1.25x`."""
    return f"{math.ceil(point.jct_mean_s.value / point.lower_bound_s * 100 - 1e-9) / 100:.2f}x"
