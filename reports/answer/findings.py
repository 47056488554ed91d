"""Writes findings that follow the headline: the possible gain, where the choice makes no
difference, what no schedule can beat (docs/design/statistics.md, "Lower bound"), and the comparison
with `fcfs-tuned`, stock vLLM with settings that were searched, or the caveat that there is none.

In: points and capacities. Out: sentences, or none if a bound is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pandas as pd

from reports.answer.headline import NEGLIGIBLE
from reports.loads import AGENTS
from reports.statistics.bootstrap import Estimate, interval
from reports.statistics.capacities import VariantCapacity, from_seeds
from reports.statistics.points import Comparison, Point
from servers.admission import HEADROOM
from servers.basics.phrasing import listed, seconds, share, times
from servers.policies.base import UNLIMITED_KV
from servers.policies.fcfs import Fcfs
from servers.records.sweep import SweepRecord
from servers.variants import LIMITS, TUNED

Ratios = Sequence[tuple[str, Estimate]]


def tuned_of(sweep: SweepRecord) -> str | None:
    """Return the tuned variant behind the router of the baseline; None without one."""
    router = sweep.baseline.partition("@")[2]
    for variant in sweep.variants:
        base, _, behind = variant.name.partition("@")
        if base.startswith(f"{TUNED}(") and behind == router and variant.name != sweep.baseline:
            return variant.name
    return None


def untuned(sweep: SweepRecord) -> list[str]:
    """Return a caveat if gains over stock vLLM in virtual time are not also over one with other
    settings, whether they were searched or given. Of the engines in virtual time, only those with
    vLLM's scheduler record a rule of admission."""
    others = [v for v in sweep.variants if not v.reference and v.name != sweep.baseline]
    of_vllm = sweep.virtual_time is not None and sweep.limits.admission is not None
    is_stock = sweep.baseline.partition("@")[0] == Fcfs.name
    has_headroom = any(getattr(sweep.limits, setting) for setting in HEADROOM)
    if not (of_vllm and is_stock and others) or has_headroom:
        return []
    if any(v.offload is None and _has_settings(v.name) for v in others):
        return []
    return [
        f"Gains over a tuned vLLM were not measured: add {TUNED} to --policies, which first"
        " searches the best settings for this machine and load."
    ]


def _has_settings(name: str) -> bool:
    base, _, arguments = name.partition("(")
    return base in (Fcfs.name, TUNED) and any(f"{setting}=" in arguments for setting in LIMITS)


def capacities_against_tuned(
    capacities: Sequence[VariantCapacity], sweep: SweepRecord
) -> list[str]:
    """Give the capacities as multiples of the tuned variant's, seed by seed."""
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


def at_load(points: Sequence[Point], load: str) -> list[Point]:
    return [p for p in points if p.load == load]


def possible_gain(
    here: Sequence[Point], base: Point | None, winner: Point
) -> tuple[float | None, list[str]]:
    """Return the winner's share of the best reference's gain, (base - winner) / (base - reference).

    A reference without offload is compared with the best variant without offload.
    """
    references = [p for p in here if p.reference and p.against is not None]
    if not references or base is None:
        return None, []
    best = min(references, key=mean_s)
    gain, name = best.against, f"The reference {best.variant}, which knows the future,"
    possible_s = mean_s(base) - mean_s(best)
    if gain is None or possible_s <= NEGLIGIBLE * mean_s(base):
        return None, [f"{name} is hardly faster, so a scheduler can gain little here."]
    alike = [p for p in here if not p.reference and p.offload == best.offload]
    if not alike:
        return None, [f"{name} reaches {times(gain.mean.value)}."]
    fastest = min(alike, key=mean_s)
    achieved = (mean_s(base) - mean_s(fastest)) / possible_s
    note = "" if fastest is winner else f", {'with' if best.offload else 'without'} offload"
    reached = f"{name} reaches {times(gain.mean.value)}{note}"
    if achieved > 1:
        return None, [f"{reached}, less than {fastest.variant}."]
    if fastest is base:
        return None, [f"{reached}, which is the possible gain."]
    finding = f"{reached}; {fastest.variant} achieves {share(achieved)} of that gain."
    return achieved if fastest is winner else None, [finding]


def mean_s(point: Point) -> float:
    return point.jct_mean_s.value


def no_difference(points: Sequence[Point], baseline: str, *, short: bool) -> list[str]:
    """State up to which rate all variants are alike. `points` includes those without a steady
    state. `short`: the run is too short for its rates, so higher rates would show even less."""
    loads: list[str] = []
    for load in dict.fromkeys(p.load for p in points):
        here = at_load(points, load)
        gains = [p.against.mean.value for p in here if p.against is not None]
        if not gains or any(abs(1 / gain - 1) > NEGLIGIBLE for gain in gains):
            break
        if any(p.unstable for p in here):
            break
        loads.append(load)
    if not loads:
        return []
    place = f"At {loads[0]}" if len(loads) == 1 else f"Up to {loads[-1]}"
    finding = (
        f"{place} the choice makes little difference: all variants are within {NEGLIGIBLE:.0%} of"
        f" {baseline}."
    )
    if short or loads[-1] != points[-1].load:
        return [finding]
    more = "More agents" if points[-1].ladder is AGENTS else "Higher rates"
    return [f"{finding} {more} or a smaller machine (--hardware) would separate them."]
