"""Writes the headline on one rate: which variants are fastest or tie, by how much, and how fast.

In: the points of the rate. Out: a text of at most about 50 words.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.answer.capacity_headline import MOST_NUMBERS, WORDS
from reports.statistics.bootstrap import NO_INTERVAL, Estimate, interval
from reports.statistics.points import Point
from servers.basics.phrasing import listed, seconds, times

NEGLIGIBLE = 0.02
"""Smaller relative differences between mean JCTs do not matter in practice."""


def headline(
    winner: Point,
    tied: Sequence[Point],
    base: Point | None,
    lacking: str,
    alone: str,
    noun: str = "scheduler",
    measured: str = "1 seed",
) -> str:
    """`tied`: points that are not distinguished from the winner. `lacking`: a sentence if there is
    no baseline. `alone`: why there is no other variant, or "". `noun`: the word for a variant.
    `measured`: the seeds or repeats."""
    place, name = _place(winner.load), winner.variant
    jct = f"mean job completion time (JCT) is {_mean(winner)}, and {_p95(winner)} at P95"
    if alone:
        return f"{place} the {jct}, with {name}. {alone}"
    if base is None:
        first = _ties([winner, *tied], noun, measured) if tied else f"{name} is fastest: its {jct}"
        return f"{place} {first}. {lacking}"
    if winner is base or winner.against is None:
        return f"{place} no {noun} is faster than {base.variant}: its {jct}."
    gain, baseline = winner.against, base.variant
    if gain.mean.value <= 1 + NEGLIGIBLE:
        return (
            f"{place} no {noun} is more than {NEGLIGIBLE:.0%} faster than {baseline}: the fastest"
            f" is {name}, whose {jct}."
        )
    if gain.mean.has_interval and not gain.mean.differs_from_one:
        return (
            f"{place} no {noun} is distinguished from {baseline} with {measured}: the fastest,"
            f" {name}, is {times(gain.mean.value)} as fast ({interval(gain.mean)}). Its {jct}."
        )
    if tied:
        gains = list(dict.fromkeys(times(_gain(point).value) for point in _shown([winner, *tied])))
        more = f"{listed(gains)} faster than {baseline} with {_mean(base)}"
        if not gain.mean.has_interval:
            more += f" ({NO_INTERVAL})"
        return f"{place} {_ties([winner, *tied], noun, measured)}, {more}."
    return (
        f"{place} {name} is {times(gain.mean.value)} faster than {baseline} on average"
        f" ({interval(gain.mean)}) and {times(gain.p95.value)} at P95: the mean job completion time"
        f" (JCT) is {_mean(winner)} instead of {_mean(base)}."
    )


def _ties(best: Sequence[Point], noun: str, measured: str) -> str:
    """Give each variant its own number, since a range would read as an interval."""
    count = WORDS[len(best)] if len(best) < len(WORDS) else str(len(best))
    means = [f"{_mean(point)} with {point.variant}" for point in _shown(best)]
    some = listed(means) if len(means) == len(best) else f"from {means[0]} to {means[1]}"
    return (
        f"{count} {noun}s are not distinguished with {measured}: the mean job completion time (JCT)"
        f" is {some}"
    )


def _shown(best: Sequence[Point]) -> list[Point]:
    """Return the variants by mean JCT, or only the fastest and the slowest of many."""
    ordered = sorted(best, key=lambda point: point.jct_mean_s.value)
    return ordered if len(best) <= MOST_NUMBERS else [ordered[0], ordered[-1]]


def _gain(point: Point) -> Estimate:
    if point.against is None:
        raise ValueError(f"{point.variant} was not compared with the baseline")
    return point.against.mean


def _mean(point: Point) -> str:
    return seconds(point.jct_mean_s.value)


def _p95(point: Point) -> str:
    return seconds(point.jct_s["jct_p95_s"])


def _place(load: str) -> str:
    return f"At {load}" if load[:1].isdigit() else f"With {load} arrivals"
