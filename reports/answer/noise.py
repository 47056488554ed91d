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

import pandas as pd

from reports.answer.headline import WORDS
from reports.metrics.cells import Results
from reports.statistics.bootstrap import MIN_SEEDS, interval, widened_by
from reports.statistics.points import Comparison, Point
from servers.basics.phrasing import counted, seconds, times
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
    if is_noise_covered(sweep):
        return list(points)
    return [replace(point, against=without_intervals(point.against)) for point in points]


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


def findings_and_caveats(
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
        if twice.mean.differs_from_one:
            caveats.append(
                f"Two measurements of {base} differ significantly, so the intervals do not cover"
                " all of the machine's noise: use more seeds."
            )
    return findings, caveats


PARTS = {"tool_s": "tool time", "decode_s": "decode time"}
MOST = 0.1
"""Larger relative differences are a caveat."""
MIN_SHARE = 0.02
"""Smaller differences, as a share of the mean JCT, do not matter."""


def different_times(results: Results, sweep: SweepRecord) -> list[str]:
    """Return at most one sentence per part, about the load with the largest difference.

    There are none in virtual time, where tools take exactly their time in the trace and steps their
    time in the profile, nor if the model's answers decide the work.
    """
    agent = sweep.agent
    if sweep.virtual_time is not None or (agent and not agent.guided):
        return []
    if results.jobs.empty:
        return []
    largest: dict[str, tuple[float, str]] = {}
    for load, jobs in results.jobs.groupby("load", sort=False):
        for part in PARTS:
            difference = _difference(jobs, part, str(load))
            if difference is not None:
                largest[part] = max(difference, largest.get(part, difference))
    return [sentence for _, sentence in largest.values()]


def _difference(jobs: pd.DataFrame, part: str, load: str) -> tuple[float, str] | None:
    """Compare the jobs that finished under all variants."""
    table = jobs.pivot_table(index=["seed", "job_id"], columns="variant", values=part).dropna()
    if table.empty or len(table.columns) < 2:
        return None
    means = table.mean().sort_values()
    least, most = float(means.iloc[0]), float(means.iloc[-1])
    if most <= (1 + MOST) * least or most - least < MIN_SHARE * float(jobs["jct_s"].mean()):
        return None
    more = f"{most / least - 1:.0%} longer" if most < 2 * least else "more than twice as long"
    than = "than" if most < 2 * least else "as"
    sentence = (
        f"The {PARTS[part]} of the same jobs is {more} with {means.index[-1]} {than} with "
        f"{means.index[0]} at {load} ({seconds(most)} instead of {seconds(least)} per job), so "
        "part of the difference between variants may come from the machine. --aa measures the"
        " baseline twice, which shows how much."
    )
    return most / max(least, 1e-9), sentence
