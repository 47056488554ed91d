"""Cells in; what to make of them out: pooled points per variant and load, and paired comparisons.

A comparison pairs the same program under the same arrivals (docs/metrics.md, "Speed-up"): what a
hard program or a burst does to both sides cancels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.metrics import Results, jct_percentiles

Floats = npt.NDArray[np.float64]

DRAWS = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    value: float
    low: float
    high: float

    @property
    def differs_from_one(self) -> bool:
        return not self.low <= 1.0 <= self.high


@dataclass(frozen=True, slots=True)
class Comparison:
    programs: int
    """Pairs of a program with itself; each holds all seeds."""
    mean: Estimate
    """S: mean JCT of the baseline over that of the variant; above 1 the variant is faster."""
    p95: Estimate


def compare(baseline: pd.DataFrame, variant: pd.DataFrame) -> Comparison | None:
    """None where nothing pairs. The bootstrap draws programs with replacement, each with its JCTs
    of all seeds and both sides."""
    a, b = paired(baseline, variant)
    if not a.size:
        return None
    programs = len(a)
    drawn = draws(programs)
    base, own = a[drawn].reshape(DRAWS, -1), b[drawn].reshape(DRAWS, -1)
    return Comparison(
        programs,
        estimate(a.mean() / b.mean(), base.mean(axis=1) / own.mean(axis=1)),
        estimate(_p95(a.ravel()) / _p95(b.ravel()), _p95(base) / _p95(own)),
    )


def paired(one: pd.DataFrame, other: pd.DataFrame) -> tuple[Floats, Floats]:
    """JCTs, programs × seeds, of the programs that finished on both sides in every common seed.
    Both frames hold job_id, seed, jct_s."""
    a, b = (f.pivot(index="job_id", columns="seed", values="jct_s") for f in (one, other))
    a, b = a.align(b, join="inner")
    whole = a.notna().all(axis=1) & b.notna().all(axis=1)
    return a[whole].to_numpy(dtype=float), b[whole].to_numpy(dtype=float)


@lru_cache(maxsize=4)
def draws(programs: int) -> npt.NDArray[np.int64]:
    """Which programs each draw holds: DRAWS × programs."""
    return np.random.default_rng(0).integers(0, programs, size=(DRAWS, programs))


def mean_jct(jobs: pd.DataFrame) -> Estimate:
    """Of all jobs, with the interval of the same bootstrap; programs may lack seeds."""
    by_program = jobs.groupby("job_id", sort=True)["jct_s"].agg(["sum", "count"])
    sums, counts = (by_program[c].to_numpy(dtype=float) for c in ("sum", "count"))
    drawn = draws(len(sums))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    return estimate(jobs["jct_s"].mean(), means)


def _p95(values: np.ndarray) -> np.ndarray:
    """Along the last axis, linear between ranks; sorting is several times faster than numpy's
    percentile on many short rows."""
    ordered = np.sort(values, axis=-1)
    place = 0.95 * (values.shape[-1] - 1)
    below = math.floor(place)
    above = min(below + 1, values.shape[-1] - 1)
    low, high = ordered[..., below], ordered[..., above]
    return np.asarray(low + (place - below) * (high - low))


def estimate(
    value: float | np.ndarray, drawn: np.ndarray, confidence: float = CONFIDENCE
) -> Estimate:
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(float(value), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Point:
    """One variant under one load, all seeds pooled."""

    variant: str
    bound: bool
    offload: bool
    load: str
    jps: float | None
    jobs: int
    jct_mean_s: Estimate
    jct_s: dict[str, float]
    """`jct_p50_s`, … over the jobs of all seeds."""
    throughput_jobs_per_s: float
    hits: dict[str, float]
    """`device`, `dram`, `ssd`: share of prompt tokens, mean over seeds."""
    saturated: bool
    """In any seed."""
    failed_gates: bool
    against: Comparison | None
    """The baseline under the same load; None for itself, or where it has no result."""

    @property
    def hit_ratio(self) -> float:
        return sum(self.hits.values())


def points(results: Results, baseline: str) -> list[Point]:
    """In the order of the cells: by rate, then as the sweep names its variants."""
    if results.cells.empty or results.jobs.empty:
        return []
    jobs = dict(list(results.jobs.groupby(["load", "variant"], sort=False)))
    found: list[Point] = []
    for (load, variant), cells in results.cells.groupby(["load", "variant"], sort=False):
        mine, base = jobs.get((load, variant)), jobs.get((load, baseline))
        if mine is None:
            continue
        against = compare(base, mine) if base is not None and variant != baseline else None
        jps = cells["jps"].iloc[0]
        found.append(
            Point(
                str(variant),
                bool(cells["bound"].iloc[0]),
                bool(cells["offload"].iloc[0]),
                str(load),
                None if pd.isna(jps) else float(jps),
                len(mine),
                mean_jct(mine),
                jct_percentiles(mine["jct_s"]),
                float(cells["throughput_jobs_per_s"].mean()),
                {k: float(cells[f"{k}_hit_ratio"].mean()) for k in ("device", "dram", "ssd")},
                bool(cells["saturated"].any()),
                bool((cells["failed_gates"] != "").any()),
                against,
            )
        )
    return found
