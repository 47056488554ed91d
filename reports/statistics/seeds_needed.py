"""Calculates how many seeds a small difference needs (docs/design/statistics.md, "Seeds needed").

In: the paired JCTs of two variants, programs × seeds. Out: a number of seeds.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from reports.statistics import student
from reports.statistics.bootstrap import CONFIDENCE, MIN_SEEDS, Floats

DIFFERENCE = 0.05
POWER = 0.9
MAX_SEEDS = 24
"""The search for narrow intervals ends here: they shrink with the square root of the seeds."""


def seeds_needed(base_s: Floats, own_s: Floats) -> float:
    """Return the total number of seeds, including those of the run.

    NaN if there are too few seeds to estimate it, infinite if only more programs would help. The
    variance is estimated from few seeds, so Student's t replaces the normal quantiles, which keeps
    the power (Stein, 1945).
    """
    programs, seeds = base_s.shape
    if seeds < MIN_SEEDS or programs < 2:
        return math.nan
    of_seeds, of_programs, of_jobs = _variances(base_s, own_s)
    tail = (1 + CONFIDENCE) / 2
    normal = sum(map(NormalDist().inv_cdf, (tail, POWER)))
    students = sum(student.quantile(seeds - 1, p) for p in (tail, POWER))
    room = math.log1p(DIFFERENCE) ** 2 - normal**2 * of_programs / programs
    if room <= 0:
        return math.inf
    needed = (students**2 * of_seeds + normal**2 * of_jobs / programs) / room
    return float(max(MIN_SEEDS, math.ceil(needed)))


def seeds_for(count: int, width: float, share: float) -> int:
    """Return the number of seeds for the next round of `--until`, after `count` seeds whose widest
    interval has a half width of `width`: as many as the width suggests, but at most twice `count`,
    since the width from few seeds is uncertain."""
    needed = count * min((width / share) ** 2, 2)
    return min(MAX_SEEDS, max(count + 1, math.ceil(needed)))


def _variances(base_s: Floats, own_s: Floats) -> tuple[float, float, float]:
    """Return the variances of the log ratio of the means between seeds, programs and single jobs.

    This is a two-way analysis of variance of each job's first-order effect on the log ratio.
    """
    programs, seeds = base_s.shape
    of_seeds = np.log(base_s.mean(axis=0) / own_s.mean(axis=0)).var(ddof=1)
    effect = base_s / base_s.mean() - own_s / own_s.mean()
    by_program, by_seed = effect.mean(axis=1, keepdims=True), effect.mean(axis=0, keepdims=True)
    left = effect - by_program - by_seed
    of_jobs = (left**2).sum() / ((programs - 1) * (seeds - 1))
    of_programs = max(0.0, by_program.var(ddof=1) - of_jobs / seeds)
    return float(of_seeds), float(of_programs), float(of_jobs)


def advice(seeds: int, needed: float) -> list[str]:
    """Return a sentence on how many seeds would find a difference; none if too little is known."""
    if math.isnan(needed):
        return []
    if math.isinf(needed):
        return [
            f"Finding a difference of {DIFFERENCE:.0%} needs more programs (--programs): these"
            " differ too much from each other for any number of seeds."
        ]
    if needed <= seeds:
        return [f"A difference of {DIFFERENCE:.0%} would probably have been found."]
    return [f"Finding a difference of {DIFFERENCE:.0%} needs about {needed:,.0f} seeds (--seeds)."]
