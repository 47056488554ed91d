"""How many seeds would tell a small difference from noise (docs/design/statistics.md, "Seeds
needed").

In: the paired JCTs of two variants, programs × seeds. Out: a number of seeds.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from scipy.special import stdtrit

from reports.statistics.bootstrap import CONFIDENCE, FEWEST_SEEDS, Floats

DIFFERENCE = 0.05
POWER = 0.9


def seeds_needed(
    base_s: Floats,
    own_s: Floats,
    difference: float = DIFFERENCE,
    power: float = POWER,
    confidence: float = CONFIDENCE,
) -> float:
    """In all, those there included: NaN where there are too few to know, infinite where only more
    programs would help.

    Stein (1945): with the spread known from a few seeds only, Student's t of those few takes the
    place of the normal quantiles, and the power is kept.
    """
    programs, seeds = base_s.shape
    if seeds < FEWEST_SEEDS or programs < 2:
        return math.nan
    of_seeds, of_programs, of_jobs = _variances(base_s, own_s)
    tail = (1 + confidence) / 2
    normal = sum(map(NormalDist().inv_cdf, (tail, power)))
    students = float(sum(stdtrit(seeds - 1, p) for p in (tail, power)))
    room = math.log1p(difference) ** 2 - normal**2 * of_programs / programs
    if room <= 0:
        return math.inf
    needed = (students**2 * of_seeds + normal**2 * of_jobs / programs) / room
    return float(max(FEWEST_SEEDS, math.ceil(needed)))


def _variances(base_s: Floats, own_s: Floats) -> tuple[float, float, float]:
    """Of the log ratio of the means: between seeds; between programs; and of what is left, a job's
    own (two-way analysis of variance of each job's first-order effect on that log ratio)."""
    programs, seeds = base_s.shape
    of_seeds = np.log(base_s.mean(axis=0) / own_s.mean(axis=0)).var(ddof=1)
    effect = base_s / base_s.mean() - own_s / own_s.mean()
    by_program, by_seed = effect.mean(axis=1, keepdims=True), effect.mean(axis=0, keepdims=True)
    left = effect - by_program - by_seed
    of_jobs = (left**2).sum() / ((programs - 1) * (seeds - 1))
    of_programs = max(0.0, by_program.var(ddof=1) - of_jobs / seeds)
    return float(of_seeds), float(of_programs), float(of_jobs)


def advice(seeds: int, needed: float) -> list[str]:
    """A sentence on what would tell a difference, where none was told; none where too little is
    known."""
    if math.isnan(needed):
        return []
    if math.isinf(needed):
        return [
            f"To tell a difference of {DIFFERENCE:.0%} takes more programs (--programs): they"
            " differ too much for any number of seeds."
        ]
    if needed <= seeds:
        return [f"A difference of {DIFFERENCE:.0%} would most likely have shown."]
    return [f"A difference of {DIFFERENCE:.0%} would take about {needed:,.0f} seeds (--seeds)."]
