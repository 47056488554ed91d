"""Writes the findings that follow the headline on a rate: the possible gain, the other variants,
and where the choice makes no difference.

In: points. Out: sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from reports.answer.speed_headline import NEGLIGIBLE
from reports.loads import AGENTS
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import some_seeds
from reports.statistics.points import Point
from servers.basics.phrasing import listed, share, times


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


def other_variants(
    here: Sequence[Point],
    base: Point | None,
    winner: Point,
    tied: Collection[str],
    *,
    named: bool,
) -> list[str]:
    """Compare the other variants with the baseline. Variants in `tied` are not listed as similar
    again, nor as faster if the headline names them."""
    rest = sorted(
        (p for p in here if p not in (winner, base) and not p.reference and p.against is not None),
        key=mean_s,
    )
    rated = [(p.variant, p.against.mean) for p in rest if p.against is not None]
    faster = [
        r
        for r in rated
        if r[1].low > 1 and r[1].value > 1 + NEGLIGIBLE and not (named and r[0] in tied)
    ]
    slower = [r for r in rated if r[1].high < 1 and r[1].value < 1 - NEGLIGIBLE]
    others = [r for r in rated if r not in faster + slower and r[0] not in tied]
    similar = [r[0] for r in others if abs(r[1].value - 1) <= NEGLIGIBLE]
    unclear = [r for r in others if r[0] not in similar]
    name = "the baseline" if base is None else base.variant
    sentences = []
    if faster:
        comparison = "Also faster" if winner is not base else "Faster"
        sentences.append(f"{comparison} than {name}: {with_ratios(faster)}.")
    if slower:
        sentences.append(f"Slower than {name}: {with_ratios(slower)}.")
    if unclear:
        tested = all(gain.has_interval for _, gain in unclear)
        state = (
            "No significant difference from"
            if tested
            else "Not tested, with too few seeds, against"
        )
        sentences.append(f"{state} {name}: {with_ratios(unclear)}.")
    if similar:
        sentences.append(f"Similar to {name}: {listed(similar)}.")
    return sentences


def no_steady_state(here: Sequence[Point], besides: str) -> list[str]:
    """List the variants without a steady state at a rate, which is worse than any ratio, except
    those in `besides`, which the headline names."""
    rest = [p for p in here if p.unstable and not p.reference and p.variant != besides]
    if not rest:
        return []
    names = [f"{p.variant}{some_seeds(p.without_steady)}" for p in rest]
    return [f"No steady state at {rest[0].load}: {listed(names)}."]


def with_ratios(rated: Sequence[tuple[str, Estimate]]) -> str:
    return listed([f"{name} {times(ratio.value)}" for name, ratio in rated])


def at_rates_above(contenders: Sequence[Point], winner: Point, baseline: str) -> list[str]:
    """Return a finding about the highest rate if the headline is about a lower one."""
    highest = contenders[-1].load
    best = min(at_load(contenders, highest), key=mean_s)
    if winner.saturated or highest == winner.load or best.against is None:
        return []
    return [
        f"At {highest} every variant is past saturation. The fastest, {best.variant}, is"
        f" {times(best.against.mean.value)} as fast as {baseline}."
    ]


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
