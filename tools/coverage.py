"""Measures how often 95% intervals over few seeds hold the truth, with the cells of a run.

In: a run folder with the capacities of the baseline and of one more variant, with many seeds. Out:
the tables of docs/design/statistics.md, "Coverage".

make coverage

The truth is the geometric mean over all N seeds of the run. A sample has n different ones of them,
so it is nearer to that mean than to the truth of infinitely many: its variance around the mean is
s²/n · (1 - n/N) instead of s²/n. Deviations are therefore divided by √(1 - n/N).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from reports.metrics.cells import collect
from reports.run_folder.read import load_run
from reports.statistics.best import MAX_SEEDS, seeds_for
from reports.statistics.bootstrap import Estimate, Floats
from reports.statistics.capacities import RATIO_PRIOR, VariantCapacity
from reports.statistics.over_seeds import UNKNOWN, Prior, geometric_mean
from reports.statistics.points import compare
from reports.statistics.searched import searched

TRIPLES, MANY = 200, 10_000
COUNTS = (3, 6, 12, 24)
"""Numbers of seeds whose intervals are tried."""
SHARES = (0.2, 0.1, 0.05)
"""Of `--until`."""
LEAST = 30
"""Seeds of a population: more than the 24 of the largest sample."""
SEED = 1
BySeed = Mapping[int, float]


class Coverage(NamedTuple):
    held: float
    """Share of the intervals that hold the truth."""
    above: float
    """Share of the intervals that are above it."""
    seeds: float
    """Mean number of seeds."""
    wide: float
    """Share of the samples that have the most seeds, and still an interval wider than `share`."""


def coverage(
    values: Floats,
    samples: int,
    share: float = math.inf,
    first: int = 3,
    prior: Prior = UNKNOWN,
) -> Coverage:
    """Return the coverage of intervals over samples of `values`, which has one value per seed. Each
    sample has `first` seeds, and then more until half the width of its interval is `share`."""
    rng = np.random.default_rng(SEED)
    truth = geometric_mean(values).value
    held = above = seeds = wide = 0
    for _ in range(samples):
        found, count = _sampled(rng.permutation(values), share, first, prior)
        excess = math.log(found.value / truth) / math.sqrt(1 - count / len(values))
        half = math.log(found.high / found.value)
        held += abs(excess) <= half
        above += excess > half
        seeds += count
        wide += half_width(found) > share
    return Coverage(held / samples, above / samples, seeds / samples, wide / samples)


def half_width(found: Estimate) -> float:
    """Return half the width of an interval, relative to the value."""
    return found.high / found.value - 1


def _sampled(drawn: Floats, share: float, count: int, prior: Prior) -> tuple[Estimate, int]:
    while True:
        found = geometric_mean(drawn[:count], prior=prior)
        width = half_width(found)
        if width <= share or count >= MAX_SEEDS:
            return found, count
        count = seeds_for(count, width, share)


def capacities_by_seed(found: Sequence[VariantCapacity], baseline: str) -> dict[str, BySeed]:
    """Return the capacities, and the ratios to the baseline's, for seeds with which both are
    found."""
    base = next(each.loads for each in found if each.variant == baseline)
    values: dict[str, BySeed] = {f"capacity of {baseline}": base}
    for each in found:
        if each.variant == baseline:
            continue
        both = base.keys() & each.loads.keys()
        values[f"capacity of {each.variant}"] = each.loads
        values[f"capacity of {each.variant} ÷ {baseline}"] = {
            seed: each.loads[seed] / base[seed] for seed in sorted(both)
        }
    return values


def jcts_by_seed(jobs: pd.DataFrame, baseline: str, base: BySeed) -> Iterator[tuple[str, BySeed]]:
    """Yield the mean JCTs and their ratios by rate, with the seeds with which the baseline sustains
    the rate: reports compare JCTs at no other. `base` has the capacities of the baseline."""
    sustained = jobs[jobs["jps"] <= jobs["seed"].map(base)]
    for jps, here in sustained.groupby("jps"):
        by_variant = {str(name): own for name, own in here.groupby("variant", sort=False)}
        for name, own in by_variant.items():
            means = own.groupby("seed")["jct_s"].mean()
            yield f"mean JCT of {name} at {jps:g} jobs/s", _by_seed(means)
            if name != baseline:
                ratios = _ratios(by_variant[baseline], own)
                yield f"mean JCT of {baseline} ÷ {name} at {jps:g} jobs/s", ratios


def _by_seed(values: pd.Series[float]) -> BySeed:
    return dict(zip(values.index.tolist(), values.tolist(), strict=True))


def _ratios(base: pd.DataFrame, own: pd.DataFrame) -> BySeed:
    found = {
        seed: compare(base[base["seed"] == seed], own[own["seed"] == seed], steady=True)
        for seed in own["seed"].unique().tolist()
    }
    return {seed: each.mean.value for seed, each in found.items() if each is not None}


def tables(folder: Path) -> list[str]:
    """Return the lines of two Markdown tables: fixed numbers of seeds, and `--until`."""
    run = load_run(folder)
    search, baseline = searched(run), run.sweep.baseline
    if search is None or len(run.sweep.seeds) < LEAST:
        raise SystemExit(f"{folder}: needs capacities with at least {LEAST} seeds")
    values = capacities_by_seed(search.found, baseline)
    common = tuple(cell for cell in run.cells if cell.key[1] in search.rates)
    results = collect(replace(run, cells=common))
    jobs = results.jobs.merge(results.cells[["cell", "jps"]], on="cell")
    values |= dict(jcts_by_seed(jobs, baseline, values[f"capacity of {baseline}"]))
    enough = {name: np.array(list(v.values())) for name, v in values.items() if len(v) >= LEAST}
    return [
        "| | seeds | mean | deviation of the logarithm | of 200 triples | "
        + " | ".join(f"{count} seeds" for count in COUNTS)
        + " | above, 3 seeds |",
        f"|{'---|' * (len(COUNTS) + 6)}",
        *(_row(name, each) for name, each in enough.items()),
        "",
        "| `--until` | seeds on average | still wider with 24 seeds | interval holds the truth |",
        "|---|---|---|---|",
        *(
            _until_row(name, each, share)
            for name, each in enough.items()
            if _prior(name) is RATIO_PRIOR
            for share in SHARES
        ),
    ]


def _prior(name: str) -> Prior:
    """Return what reports assume of values with this name."""
    return RATIO_PRIOR if name.startswith("capacity") and "÷" in name else UNKNOWN


def _row(name: str, values: Floats) -> str:
    prior = _prior(name)
    found = [coverage(values, MANY, first=count, prior=prior) for count in COUNTS]
    return (
        f"| {name} | {len(values)} | {geometric_mean(values).value:.3g} | "
        f"{np.log(values).std(ddof=1):.2f} | {coverage(values, TRIPLES, prior=prior).held:.1%} | "
        + " | ".join(f"{each.held:.1%}" for each in found)
        + f" | {found[0].above:.1%} |"
    )


def _until_row(name: str, values: Floats, share: float) -> str:
    found = coverage(values, MANY, share, prior=_prior(name))
    return f"| {share:.0%}, {name} | {found.seeds:.1f} | {found.wide:.0%} | {found.held:.1%} |"


if __name__ == "__main__":
    print("\n".join(tables(Path(sys.argv[1]))))
