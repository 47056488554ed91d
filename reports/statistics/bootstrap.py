"""Calculates ratios of paired JCTs and their intervals (docs/design/statistics.md, "Speed-up").

In: JCTs of two sides, programs × seeds, in seconds. Out: estimates. A pair is the same program
under the same arrivals, so the effect of a long program or a burst cancels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.numbers import DASH
from reports.statistics import student
from servers.basics.phrasing import decimals

Floats = npt.NDArray[np.float64]

NO_INTERVAL = "too few seeds for an interval"
DRAWS = 2000
CONFIDENCE = 0.95
MIN_SEEDS = 3
"""With fewer seeds, the spread between them is useless: t with one degree of freedom is 12.7."""
LEAST_SHOWN = 0.005
"""A lower limit that is a smaller share of the value is not shown, nor is its interval."""
MAX_CHUNK_VALUES = 2_000_000
"""Draws × jobs that are processed at a time, which limits the memory."""
MAX_KEPT_VALUES = 20_000_000
"""Up to this many draws × programs, counts are kept for the next metric, with 4 bytes each."""


@dataclass(frozen=True, slots=True)
class Estimate:
    value: float
    low: float
    high: float
    """`low` and `high` are NaN if there is only one seed, or if there are too few measurements to
    show how much a machine varies."""

    @property
    def has_interval(self) -> bool:
        return not math.isnan(self.low)

    @property
    def is_shown(self) -> bool:
        """Whether the interval says anything to a reader. With two seeds, whose t is 12.7, its
        lower limit is often so small that it would be shown as 0.00."""
        return self.low >= LEAST_SHOWN * self.value

    @property
    def differs_from_one(self) -> bool:
        return self.low > 1.0 or self.high < 1.0


def ratio(
    above_s: Floats,
    below_s: Floats,
    percentile: float | None = None,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Return the ratio of the means, or of a percentile.

    The interval covers the choice of programs and, with at least three seeds, the draw of arrivals.
    """
    value = float(of(above_s, percentile) / of(below_s, percentile))
    spread = estimate(value, drawn(above_s, percentile) / drawn(below_s, percentile), confidence)
    by_seed = of(above_s, percentile, axis=0) / of(below_s, percentile, axis=0)
    return widened(spread, by_seed, confidence)


def widened(spread: Estimate, by_seed: Floats, confidence: float = CONFIDENCE) -> Estimate:
    """Combine `spread` with Student's interval of the logs of `by_seed`, as independent errors."""
    seeds = len(by_seed)
    if seeds < MIN_SEEDS:
        return spread
    t = student.quantile(seeds - 1, (1 + confidence) / 2)
    return widened_by(spread, t * float(np.log(by_seed).std(ddof=1)) / math.sqrt(seeds))


def widened_by(spread: Estimate, half: float) -> Estimate:
    """Combine `spread` with an independent error of a ratio, whose logarithm is at most `half`. A
    value without an interval gets the interval of the error."""
    if not spread.has_interval:
        spread = Estimate(spread.value, spread.value, spread.value)
    down = math.log(spread.value / min(spread.low, spread.value))
    up = math.log(max(spread.high, spread.value) / spread.value)
    return Estimate(
        spread.value,
        spread.value * math.exp(-math.hypot(down, half)),
        spread.value * math.exp(math.hypot(up, half)),
    )


def paired(one: pd.DataFrame, other: pd.DataFrame) -> tuple[Floats, Floats]:
    """Return JCTs (programs × seeds) of programs that finished on both sides in every common seed.

    Both frames have job_id, seed and jct_s.
    """
    seeds = np.intersect1d(one["seed"], other["seed"])
    programs = pd.Index(np.intersect1d(one["job_id"].unique(), other["job_id"].unique()))
    a, b = (_matrix(jobs, programs, seeds) for jobs in (one, other))
    complete = ~(np.isnan(a) | np.isnan(b)).any(axis=1)
    return a[complete], b[complete]


def _matrix(jobs: pd.DataFrame, programs: pd.Index, seeds: npt.NDArray[np.int64]) -> Floats:
    """Return JCTs, programs × seeds, with NaN for jobs that did not finish."""
    row = programs.get_indexer(pd.Index(jobs["job_id"]))
    seed = jobs["seed"].to_numpy()
    column = np.searchsorted(seeds, seed) if len(seeds) else np.zeros(len(seed), int)
    there = (row >= 0) & np.isin(seed, seeds)
    jct_s = np.full((len(programs), len(seeds)), np.nan)
    jct_s[row[there], column[there]] = jobs["jct_s"].to_numpy()[there]
    return jct_s


Counts = npt.NDArray[np.int32]
"""Counts of each program in the bootstrap draws: draws × programs."""


def draws(programs: int) -> Iterable[Counts]:
    """Yield the counts of all DRAWS, in pieces that limit the memory if there are many programs."""
    if DRAWS * programs <= MAX_KEPT_VALUES:
        return (_all_draws(programs),)
    return _pieces(programs)


@lru_cache(maxsize=4)
def _all_draws(programs: int) -> Counts:
    return np.concatenate(list(_pieces(programs)))


def _pieces(programs: int) -> Iterator[Counts]:
    rng = np.random.default_rng(0)
    at_once = max(1, MAX_CHUNK_VALUES // programs)
    for start in range(0, DRAWS, at_once):
        rows = min(at_once, DRAWS - start)
        chosen = rng.integers(0, programs, size=(rows, programs))
        chosen += programs * np.arange(rows)[:, None]
        counts = np.bincount(chosen.ravel(), minlength=rows * programs)
        yield counts.reshape(rows, programs).astype(np.int32)


def of(jct_s: Floats, percentile: float | None, axis: int | None = None) -> Floats:
    """Return the mean, or a percentile interpolated between the two nearest ranks."""
    if percentile is None:
        return np.asarray(jct_s.mean(axis=axis))
    return np.asarray(np.percentile(jct_s, percentile, axis=axis))


def drawn(jct_s: Floats, percentile: float | None) -> Floats:
    """Apply `of` to each bootstrap draw of programs, each drawn with its JCTs in all seeds."""
    counts = draws(len(jct_s))
    if percentile is None:
        means = jct_s.mean(axis=1)
        return np.concatenate([piece @ means / len(jct_s) for piece in counts])
    slowest = np.argsort(jct_s, axis=None)[::-1]
    position = percentile / 100 * (jct_s.size - 1)
    at_once = max(1, MAX_CHUNK_VALUES // jct_s.size)
    found = [
        _drawn_percentile(piece[start : start + at_once], jct_s, slowest, position)
        for piece in counts
        for start in range(0, len(piece), at_once)
    ]
    return np.concatenate(found)


def _drawn_percentile(
    counts: Counts, jct_s: Floats, slowest: npt.NDArray[np.int64], position: float
) -> Floats:
    """Return, for each draw, the value at a rank, which may lie between two values. `slowest` are
    the positions of all jobs, slowest first."""
    below = math.floor(position)
    reached = _reached(counts, slowest // jct_s.shape[1], jct_s.size - below)
    low, high = (
        jct_s.ravel()[slowest[(reached < jct_s.size - rank).sum(axis=1)]]
        for rank in (below, math.ceil(position))
    )
    return np.asarray(low + (position - below) * (high - low))


def _reached(counts: Counts, programs: npt.NDArray[np.int64], required: int) -> Counts:
    """Return cumulative counts of each draw's jobs, slowest first: draws × jobs.

    They end when every draw has `required` jobs. `programs` are the programs of the jobs.
    """
    jobs = required
    while True:
        jobs = min(2 * jobs, len(programs))
        reached = np.cumsum(counts[:, programs[:jobs]], axis=1, dtype=np.int32)
        if jobs == len(programs) or reached[:, -1].min() >= required:
            return reached


def estimate(
    value: float | np.ndarray, drawn: np.ndarray, confidence: float = CONFIDENCE
) -> Estimate:
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(float(value), float(low), float(high))


def limits(estimate: Estimate) -> str:
    """Format an interval for a table."""
    return f"{estimate.low:.3g}–{estimate.high:.3g}" if estimate.is_shown else DASH


def interval(estimate: Estimate) -> str:
    """Format an interval, such as `95% CI 1.7–2.1`, with fewer decimals from 10 on."""
    if not estimate.is_shown:
        return NO_INTERVAL
    digits = max(decimals(v) for v in (estimate.value, estimate.low, estimate.high))
    low, high = (
        f"{v:.{min(digits, 2 if v < 10 else 1 if v < 100 else 0)}f}"
        for v in (estimate.low, estimate.high)
    )
    return f"95% CI {low}–{high}"
