"""Pairs the jobs of two runs under the same policy and load, and calculates the ratio of JCTs.

In: the finished jobs of two sides. Out: means or percentiles of both sides, and the ratio with its
interval. In a fixed set of jobs, a pair is a program in all common seeds. In steady state each seed
draws its own programs, so the ratio is calculated per seed, over the jobs that both sides measured,
and the interval is over seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from reports.statistics.bootstrap import Estimate, Floats, of, paired, ratio
from reports.statistics.over_seeds import geometric_mean

MIN_PROGRAMS = 5
"""With fewer programs, an interval is too unreliable to report a difference."""


class PairsCompared(NamedTuple):
    base_s: float
    new_s: float
    ratio: Estimate
    """new ÷ base."""


@dataclass(frozen=True, slots=True)
class ProgramPairs:
    """JCTs of a fixed set of jobs: programs × seeds."""

    base_s: Floats
    new_s: Floats

    @property
    def size(self) -> int:
        return len(self.base_s) if self.base_s.size else 0

    @property
    def too_few(self) -> bool:
        return self.size < MIN_PROGRAMS

    def compared(self, percentile: float | None, confidence: float) -> PairsCompared:
        base_s, new_s = (float(of(jct_s, percentile)) for jct_s in (self.base_s, self.new_s))
        return PairsCompared(base_s, new_s, ratio(self.new_s, self.base_s, percentile, confidence))


@dataclass(frozen=True, slots=True)
class JobPairs:
    """Jobs that both sides measured in steady state."""

    jobs: pd.DataFrame
    """With seed, jct_s_base and jct_s_new."""

    @property
    def size(self) -> int:
        return len(self.jobs)

    @property
    def too_few(self) -> bool:
        return self.size < MIN_PROGRAMS

    def compared(self, percentile: float | None, confidence: float) -> PairsCompared:
        by_seed = self.jobs.groupby("seed")[["jct_s_base", "jct_s_new"]]
        values = by_seed.mean() if percentile is None else by_seed.quantile(percentile / 100)
        base_s, new_s = (geometric_mean(values[name]).value for name in values)
        relative = values["jct_s_new"] / values["jct_s_base"]
        return PairsCompared(base_s, new_s, geometric_mean(relative, confidence))


def pairs(base: pd.DataFrame, new: pd.DataFrame, *, steady: bool) -> ProgramPairs | JobPairs:
    """Frames have job_id, seed and jct_s."""
    if not steady:
        return ProgramPairs(*paired(base, new))
    return JobPairs(base.merge(new, on=["seed", "job_id"], suffixes=("_base", "_new")))
