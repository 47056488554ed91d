"""Calculates points: one variant under one load, pooled over seeds and compared with the baseline.

In: cells and jobs. Out: points (docs/design/statistics.md, "Speed-up").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from reports.loads import RATES, Ladder
from reports.metrics.background import REQUESTS
from reports.metrics.cells import Results, amounts_of, ladder_in
from reports.metrics.jct import jct_percentiles
from reports.metrics.measure import METRICS
from reports.statistics.bootstrap import (
    CONFIDENCE,
    Estimate,
    draws,
    estimate,
    of,
    paired,
    ratio,
    widened,
)
from reports.statistics.capacities import SeedShare, VariantCapacity
from reports.statistics.over_seeds import geometric_mean, mean_of_positive
from servers.policies.base import UNLIMITED_KV


@dataclass(frozen=True, slots=True)
class Comparison:
    mean: Estimate
    """S: mean JCT of the baseline ÷ mean JCT of the variant. Above 1 the variant is faster."""
    p95: Estimate


class PairedJcts(NamedTuple):
    """The mean of JCTs, or a percentile, on two sides."""

    above_s: float
    below_s: float
    ratio: Estimate
    """above ÷ below."""


def compare_jcts(
    above: pd.DataFrame,
    below: pd.DataFrame,
    percentiles: Sequence[float | None],
    *,
    steady: bool,
    confidence: float = CONFIDENCE,
) -> tuple[int, list[PairedJcts]]:
    """Return the number of pairs, and a comparison per percentile (None: the mean), none without
    pairs. Frames have job_id, seed and jct_s.

    In a fixed set of jobs, a pair is a program in all common seeds. In steady state a seed draws
    its own programs, so the ratio is calculated per seed, over the jobs that both sides measured,
    and the interval is over seeds.
    """
    if steady:
        both = above.merge(below, on=["seed", "job_id"], suffixes=("_above", "_below"))
        return len(both), [_over_seeds(both, p, confidence) for p in percentiles if len(both)]
    one, other = paired(above, below)
    return len(one) if one.size else 0, [
        PairedJcts(float(of(one, p)), float(of(other, p)), ratio(one, other, p, confidence))
        for p in percentiles
        if one.size
    ]


def _over_seeds(both: pd.DataFrame, percentile: float | None, confidence: float) -> PairedJcts:
    by_seed = both.groupby("seed")[["jct_s_above", "jct_s_below"]]
    values = by_seed.mean() if percentile is None else by_seed.quantile(percentile / 100)
    above, below = (values[name] for name in values)
    return PairedJcts(
        geometric_mean(above).value,
        geometric_mean(below).value,
        geometric_mean(above / below, confidence),
    )


def compare(
    baseline: pd.DataFrame, variant: pd.DataFrame, *, steady: bool = False
) -> Comparison | None:
    """Compare JCTs; None if no job finished on both sides. Frames have job_id, seed, jct_s."""
    sides = (baseline, variant) if steady else (by_draw(baseline), by_draw(variant))
    _, found = compare_jcts(*sides, (None, 95), steady=steady)
    return Comparison(*(each.ratio for each in found)) if found else None


def by_draw(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per program and draw, if cells ran several times.

    Repeats of a single seed are the draws, so that intervals cover the machine's variation. With
    several seeds, which vary more, a draw is a seed with the mean of its repeats.
    """
    if "repeat" not in jobs or jobs["repeat"].max() == 1:
        return jobs
    if jobs["seed"].nunique() == 1:
        return jobs.assign(seed=jobs["repeat"])
    return jobs.groupby(["seed", "job_id"])["jct_s"].mean().reset_index()


def mean_jct(jobs: pd.DataFrame, *, steady: bool = False) -> Estimate:
    """Return the mean over all jobs, with the same kind of interval as a ratio; in steady state the
    mean of the seeds' mean JCTs, with equal weights whatever their windows.

    Programs may be missing in some seeds.
    """
    if steady:
        return mean_of_positive(jobs.groupby("seed")["jct_s"].mean().tolist())
    jobs = by_draw(jobs)
    sums, counts = (
        jobs.groupby("job_id", sort=True)["jct_s"].agg(how).to_numpy(dtype=float)
        for how in ("sum", "count")
    )
    drawn = np.concatenate([(piece @ sums) / (piece @ counts) for piece in draws(len(sums))])
    spread = estimate(jobs["jct_s"].mean(), drawn)
    return widened(spread, jobs.groupby("seed")["jct_s"].mean().to_numpy())


@dataclass(frozen=True, slots=True)
class Point:
    """One variant under one load, all seeds pooled."""

    variant: str
    reference: str
    """As in `VariantCapacity`. With unlimited KV memory it is compared by capacity only, since its
    machine differs from the others'."""
    offload: bool
    load: str
    amount: float | None
    """The load as a number: jobs per second, or agents; None if it has none."""
    jobs: int
    jct_mean_s: Estimate
    jct_s: dict[str, float]
    """`jct_p50_s`, … over the jobs of all seeds."""
    throughput_jobs_per_s: float
    hits: dict[str, float]
    """`device`, `dram`, `ssd`: share of prompt tokens, mean over seeds."""
    saturated: bool
    """Whether it is saturated in any seed."""
    failed_gates: bool
    against: Comparison | None
    """Comparison with the baseline under the same load. None for the baseline itself, if a cell of
    either failed a validity gate, and if the baseline has no result or no steady state, since its
    JCT then depends on the length of the run."""
    without_steady: SeedShare | None = None
    """The seeds without a steady state; None if there are none."""
    baseline_without_steady: SeedShare | None = None
    """The same for the baseline under the same load. Compared with it, a variant that has a steady
    state is better by more than any ratio."""
    pooled: Mapping[str, float] = field(default_factory=dict)
    """Metrics that pool over seeds, by column of `cells.csv`; those of routers and of a background
    only if there are any."""
    ladder: Ladder = RATES
    """The kind of load."""
    sustained: SeedShare | None = None
    """The seeds with which the load is sustained; None without a search for capacities."""

    @property
    def is_mixed(self) -> bool:
        """Whether only some seeds sustain the load. JCTs of the others are larger by factors, so
        that no mean over all of them is shown."""
        return self.sustained is not None and self.sustained.is_mixed

    @property
    def lower_bound_s(self) -> float:
        """Mean over seeds of the mean JCT that no schedule can beat; NaN if unknown."""
        return self.pooled.get("jct_bound_s", math.nan)

    @property
    def rate_bound_jobs_per_s(self) -> float:
        """Mean over seeds of the rate that no schedule can exceed; NaN if unknown."""
        return self.pooled.get("rate_bound_jobs_per_s", math.nan)

    @property
    def has_background(self) -> bool:
        return REQUESTS in self.pooled

    @property
    def unstable(self) -> bool:
        """Whether the point has no numbers, because some seed has no steady state."""
        return math.isnan(self.jct_mean_s.value)

    @property
    def hit_ratio(self) -> float:
        return sum(self.hits.values())


def points(results: Results, baseline: str, *, steady: bool = False) -> list[Point]:
    """Return points in the order of the cells: by rate, then as the sweep names its variants.

    `steady`: the cells measure a steady state, whose intervals are over seeds only.
    """
    if results.cells.empty or results.jobs.empty:
        return []
    # Pairing by number is faster than by name.
    numbered = results.jobs.assign(job_id=pd.factorize(results.jobs["job_id"], sort=True)[0])
    jobs = dict(list(numbered.groupby(["load", "variant"], sort=False)))
    without = results.cells[results.cells["unstable"] != ""]
    unstable = set(zip(without["load"], without["variant"], strict=True))
    lacking = seeds_without_steady(results.cells)
    failed = results.cells[results.cells["failed_gates"] != ""]
    invalid = set(zip(failed["load"], failed["variant"], strict=True))
    found: list[Point] = []
    for (load, variant), cells in results.cells.groupby(["load", "variant"], sort=False):
        mine, base = jobs.get((load, variant)), jobs.get((load, baseline))
        if mine is None or (load, variant) in unstable:
            continue
        against, reference = None, str(cells["reference"].iloc[0])
        is_valid = not {(load, variant), (load, baseline)} & invalid
        if (
            base is not None
            and variant != baseline
            and reference != UNLIMITED_KV
            and is_valid
            and (load, baseline) not in unstable
        ):
            against = compare(base, mine, steady=steady)
        amount = amounts_of(cells).iloc[0]
        found.append(
            Point(
                str(variant),
                reference,
                bool(cells["offload"].iloc[0]),
                str(load),
                None if pd.isna(amount) else float(amount),
                len(mine),
                mean_jct(mine, steady=steady),
                jct_percentiles(mine["jct_s"].to_numpy()),
                float(cells["throughput_jobs_per_s"].mean()),
                {k: float(cells[f"{k}_hit_ratio"].mean()) for k in ("device", "dram", "ssd")},
                bool(cells["saturated"].any()),
                (load, variant) in invalid,
                against,
                None,
                None if (load, baseline) in invalid else lacking.get((str(load), baseline)),
                _pooled(cells),
                ladder_in(cells),
            )
        )
    return found


def seeds_without_steady(cells: pd.DataFrame) -> dict[tuple[str, str], SeedShare]:
    """Return the share of seeds without a steady state, by load and variant."""
    found: dict[tuple[str, str], SeedShare] = {}
    for (load, variant), own in cells.groupby(["load", "variant"], sort=False):
        unstable = own["unstable"] != ""
        if unstable.any():
            seeds = own.loc[unstable, "seed"].nunique(), own["seed"].nunique()
            found[str(load), str(variant)] = SeedShare(*seeds)
    return found


def _pooled(cells: pd.DataFrame) -> dict[str, float]:
    return {
        name: float(cells[name].max() if pool == "max" else cells[name].mean(skipna=False))
        for name, metric in METRICS.items()
        if (pool := metric.pool) and name in cells
    }


def with_sustained(points: Sequence[Point], found: Sequence[VariantCapacity]) -> list[Point]:
    """Return the points with the seeds that sustain their loads; `found`: the capacities."""
    by_variant = {each.variant: each for each in found}
    return [
        replace(p, sustained=by_variant[p.variant].sustained_at(p.amount))
        if p.variant in by_variant and p.amount is not None
        else p
        for p in points
    ]


def with_unstable(points: Sequence[Point], results: Results) -> list[Point]:
    """Return the points in the order of the cells, with a point without numbers for each variant
    and load that is unstable in any seed."""
    if results.cells.empty:
        return list(points)
    stable = {(p.load, p.variant): p for p in points}
    shown: list[Point] = []
    for (load, variant), cells in results.cells.groupby(["load", "variant"], sort=False):
        if (cells["unstable"] != "").any():
            shown.append(_unstable(str(load), str(variant), cells))
        elif (str(load), str(variant)) in stable:
            shown.append(stable[str(load), str(variant)])
    return shown


def _unstable(load: str, variant: str, cells: pd.DataFrame) -> Point:
    return Point(
        variant,
        str(cells["reference"].iloc[0]),
        bool(cells["offload"].iloc[0]),
        load,
        float(amounts_of(cells).iloc[0]),
        0,
        Estimate(math.nan, math.nan, math.nan),
        jct_percentiles(np.empty(0)),
        math.nan,
        dict.fromkeys(("device", "dram", "ssd"), math.nan),
        saturated=True,
        failed_gates=bool((cells["failed_gates"] != "").any()),
        against=None,
        without_steady=seeds_without_steady(cells)[load, variant],
        ladder=ladder_in(cells),
    )
