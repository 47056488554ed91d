"""Compares differences between policies with the noise of a live engine.

With fewer than three measurements of each variant (seeds, or repeats of one seed), intervals cover
the choice of programs only: a machine that was slower for a minute would make a difference that
looks significant. Speed-ups then have no interval.

An A/A arm is the baseline, measured a second time under another name. It is not part of the answer:
its speed-up over the baseline shows how much the machine makes two equal variants differ. The
intervals of all other speed-ups are widened by as much, so a gain below this noise does not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from reports.answer.capacity_headline import WORDS
from reports.statistics.bootstrap import MIN_SEEDS, interval, widened_by
from reports.statistics.points import Comparison, Point
from servers.basics.phrasing import counted, listed, times
from servers.records.sweep import SweepRecord


class Noise(NamedTuple):
    """Absolute logarithms of the ratios of two measurements of the same variant."""

    mean: float
    p95: float


NO_NOISE = Noise(0.0, 0.0)


def measurements(sweep: SweepRecord) -> int:
    """Return how many independent measurements each variant has at a rate: its seeds, or the
    repeats of a single one."""
    seeds = len(sweep.seeds)
    return seeds if seeds > 1 else len(sweep.repeats)


def in_words(sweep: SweepRecord) -> str:
    """Return `3 seeds`, or `3 repeats` of a single seed."""
    several = len(sweep.seeds) == 1 < len(sweep.repeats)
    return counted(measurements(sweep), "repeat" if several else "seed")


def is_noise_covered(sweep: SweepRecord) -> bool:
    """Return whether intervals cover the variation of the machine. Virtual time has none."""
    return sweep.virtual_time is not None or measurements(sweep) >= MIN_SEEDS


def only_tested(points: Sequence[Point], sweep: SweepRecord) -> list[Point]:
    """Return the points, without the intervals of speed-ups if they would not cover the noise."""
    return list(points) if is_noise_covered(sweep) else [_untested(point) for point in points]


def _untested(point: Point) -> Point:
    return replace(point, against=without_intervals(point.against))


def without_intervals(gain: Comparison | None) -> Comparison | None:
    if gain is None:
        return None
    mean, p95 = (replace(each, low=math.nan, high=math.nan) for each in (gain.mean, gain.p95))
    return replace(gain, mean=mean, p95=p95)


def untested(sweep: SweepRecord) -> list[str]:
    """Return a caveat if speed-ups have no intervals because of the noise."""
    if is_noise_covered(sweep):
        return []
    count = measurements(sweep)
    once = "One measurement" if count == 1 else f"{WORDS[count].capitalize()} measurements"
    return [
        f"{once} of each variant: another could give other differences, so none is called"
        f" significant. Use --repeats {MIN_SEEDS} or --seeds 1..{MIN_SEEDS}; --aa shows how much"
        f" two measurements of {sweep.baseline} differ."
    ]


def second_arms(sweep: SweepRecord) -> dict[str, str]:
    """Return the A/A arms, with the variant that each measures again."""
    return {v.name: v.same_as for v in sweep.variants if v.same_as}


def with_noise(points: Sequence[Point], arms: Mapping[str, str]) -> list[Point]:
    """Widen the intervals of the speed-ups by the difference of two equal variants at each load."""
    return [
        point if point.variant in arms else _with_noise(point, noise_at(points, arms, point.load))
        for point in points
    ]


def _with_noise(point: Point, noise: Noise) -> Point:
    gain = point.against
    if gain is None or noise == NO_NOISE:
        return point
    mean, p95 = widened_by(gain.mean, noise.mean), widened_by(gain.p95, noise.p95)
    return replace(point, against=replace(gain, mean=mean, p95=p95))


def noise_at(points: Sequence[Point], arms: Mapping[str, str], load: str | None) -> Noise:
    """Return the largest difference between two equal variants at a load."""
    twice = [p.against for p in points if p.variant in arms and p.load == load and p.against]
    return Noise(
        max((abs(math.log(each.mean.value)) for each in twice), default=0.0),
        max((abs(math.log(each.p95.value)) for each in twice), default=0.0),
    )


def noise(
    points: Sequence[Point], arms: Mapping[str, str], load: str
) -> tuple[list[str], list[str]]:
    """Return findings and caveats about the load of the answer."""
    here = [p for p in points if p.load == load and p.against is not None]
    findings: list[str] = []
    caveats: list[str] = []
    for arm in (p for p in here if p.variant in arms):
        twice = arm.against
        if twice is None:
            continue
        base = arms[arm.variant]
        findings.append(
            f"Measurement noise: {base}, measured a second time, is"
            f" {times(twice.mean.value)} as fast ({interval(twice.mean)})."
        )
        size = abs(math.log(twice.mean.value))
        within = [
            f"{p.variant} {times(p.against.mean.value)}"
            for p in here
            if p.variant not in arms
            and not p.bound
            and p.against is not None
            and abs(math.log(p.against.mean.value)) <= size
        ]
        if within:
            caveats.append(
                f"Two measurements of {base} differ as much as it differs from {listed(within)}."
            )
        if twice.mean.differs_from_one:
            caveats.append(
                f"Two measurements of {base} differ significantly, so the intervals do not cover"
                " all of the machine's noise: use more seeds."
            )
    return findings, caveats
