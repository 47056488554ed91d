"""Compares the variants with `fcfs-tuned`, which is stock vLLM with settings that were searched, as
a second baseline.

In: capacities over seeds, or the jobs at a load. Out: at most one sentence or two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from reports.statistics.bootstrap import Estimate, interval
from reports.statistics.capacities import VariantCapacity, from_seeds
from reports.statistics.points import Comparison, Point
from servers.basics.phrasing import listed, seconds, times
from servers.records.sweep import SweepRecord
from servers.variants import TUNED

Ratios = Sequence[tuple[str, Estimate]]


def tuned_of(sweep: SweepRecord) -> str | None:
    """Return the tuned variant behind the router of the baseline; None without one."""
    router = sweep.baseline.partition("@")[2]
    for variant in sweep.variants:
        base, _, behind = variant.name.partition("@")
        if base.startswith(f"{TUNED}(") and behind == router and variant.name != sweep.baseline:
            return variant.name
    return None


def capacities_against_tuned(
    capacities: Sequence[VariantCapacity], sweep: SweepRecord
) -> list[str]:
    """Give the capacities as multiples of that of the tuned variant, seed by seed."""
    tuned = next((c for c in capacities if c.variant == tuned_of(sweep)), None)
    if tuned is None or tuned.load is None:
        return []
    own = f"{tuned.variant} sustains {tuned.text()}"
    base = next((c for c in capacities if c.variant == sweep.baseline), None)
    if base is not None and tuned.loads == base.loads:
        own += f", as many as {base.variant} with each seed"
    elif tuned.ratio is not None:
        own += f", {times(tuned.ratio.value)} as many as {sweep.baseline} ({interval(tuned.ratio)})"
    against = from_seeds(capacities, tuned.variant, tuned.by_seed)
    ratios = {
        each.variant: each.ratio
        for each in against
        if each.ratio and not each.reference and each.variant != sweep.baseline
    }
    return [own + _against(sorted(ratios.items(), key=lambda item: -item[1].value))]


def jcts_against_tuned(
    there: Sequence[Point],
    jobs: pd.DataFrame,
    sweep: SweepRecord,
    versus: Callable[[pd.DataFrame, pd.DataFrame], Comparison | None],
) -> list[str]:
    """Give the mean JCTs at one load as speed-ups over the tuned variant. `jobs`: those at the
    load, in the columns of `Results`."""
    tuned = next((p for p in there if p.variant == tuned_of(sweep)), None)
    if tuned is None:
        return []
    own = f"The mean JCT of {tuned.variant} is {seconds(tuned.jct_mean_s.value)}"
    if tuned.against is not None:
        own += f", {times(tuned.against.mean.value)} as fast as {sweep.baseline}"
    of = {str(variant): rows for variant, rows in jobs.groupby("variant", sort=False)}
    ratios = [
        (point.variant, compared.mean)
        for point in sorted(there, key=lambda point: point.jct_mean_s.value)
        if point.variant not in (tuned.variant, sweep.baseline)
        and (compared := versus(of[tuned.variant], of[point.variant])) is not None
    ]
    return [own + _against(ratios)]


def _against(ratios: Ratios) -> str:
    if not ratios:
        return "."
    return f". Against it: {listed([f'{n} {times(r.value)} ({interval(r)})' for n, r in ratios])}."
