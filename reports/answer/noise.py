"""Compares the policies with the noise of the measurement, if the sweep has an A/A arm (`--aa`).

An A/A arm is the baseline, measured a second time under another name. It takes no part in the
answer: its speed-up over the baseline is what the machine does to two equal variants. The intervals
of all other speed-ups are wider by as much, so a gain that is smaller than this noise is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from reports.phrasing import listed, times
from reports.statistics.bootstrap import interval, widened_by
from reports.statistics.points import Point


class Noise(NamedTuple):
    """Logarithms of the ratios of two measurements of the same variant, without a sign."""

    mean: float
    p95: float


NO_NOISE = Noise(0.0, 0.0)


def second_arms(sweep: Mapping[str, Any]) -> dict[str, str]:
    """Return the variants that measure another one again, by name."""
    return {v["name"]: v["same_as"] for v in sweep["variants"] if v.get("same_as")}


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
            f"Noise of the measurement: {base}, measured a second time, is"
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
                f"Two measurements of {base} differ significantly, so intervals do not cover all"
                " of the machine's noise: use more seeds."
            )
    return findings, caveats
