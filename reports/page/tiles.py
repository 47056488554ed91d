"""Builds the large numbers beneath the headline of a report.

In: the answer. Out: tiles, each with a number, its meaning and its certainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reports.answer.capacity_headline import rate_interval, value_of
from reports.answer.costs import JobCost
from reports.answer.headline import NEGLIGIBLE
from reports.answer.verdict import Answer
from reports.capacity.estimate import Kind
from reports.statistics.bootstrap import NO_INTERVAL, Estimate, interval
from reports.statistics.capacities import EQUAL_WITHIN, SeedShare, VariantCapacity, some_seeds
from reports.statistics.points import Point
from servers.basics.phrasing import counted, seconds, share, times
from servers.policies.fcfs import Fcfs


class Tile(NamedTuple):
    number: str
    what: str
    sure: str
    """An interval or a comparison."""


def tiles(answer: Answer, baseline: str) -> list[Tile]:
    if answer.capacities:
        return _of_capacities(answer, baseline)
    return _of_speed_up(answer, baseline)


def _of_capacities(answer: Answer, baseline: str) -> list[Tile]:
    """Return four tiles: the highest capacity, or the baseline's if none is significantly higher;
    the ratio of the highest to the baseline's, or of the lowest if none is higher; the cost of a
    job with the first; and a mean JCT, at a rate that the baseline does not sustain if there is
    one."""
    ranked = sorted(
        (each for each in answer.capacities if each.load is not None and not each.reference),
        key=lambda each: value_of(each).value,
        reverse=True,
    )
    winners = [each for each in ranked if each.variant in answer.winners]
    if not winners:
        return []
    base = next((each for each in winners if each.variant == baseline), None)
    shown = base or winners[0]
    most = Tile(
        shown.text(), f"sustained with {_named(shown.variant)}", rate_interval(value_of(shown))
    )
    ratio = _other_capacity(answer, ranked, base, baseline)
    return [most, *ratio, *_cost(answer.costs, shown.variant, baseline), *_jct(answer)]


def _other_capacity(
    answer: Answer, ranked: Sequence[VariantCapacity], base: VariantCapacity | None, baseline: str
) -> list[Tile]:
    """`base`: the baseline if it is among the winners."""
    never = [each for each in answer.capacities if each.kind is Kind.NEVER and not each.reference]
    if lost := [each for each in never if base is not None or each.variant == baseline]:
        first = lost[0]
        what = f"sustained with {_named(first.variant)}"
        return [Tile(f"no {first.ladder.noun}", what, _never(lost))]
    compared = [each for each in ranked if each.ratio is not None]
    if not compared:
        return []
    highest, lowest = compared[0], compared[-1]
    if base is None:
        return _ratio_tile(highest, f"as many as with {_named(baseline)}")
    if highest is ranked[0] and not _is_even(highest):
        return _ratio_tile(highest, f"as many with {highest.variant}, the most")
    if _is_even(lowest):
        return []
    only = "the next" if lowest is highest else "the fewest"
    return _ratio_tile(lowest, f"as many with {lowest.variant}, {only}")


def _cost(costs: Sequence[JobCost], shown: str, baseline: str) -> list[Tile]:
    by_variant = {cost.variant: cost for cost in costs}
    if (cost := by_variant.get(shown)) is None:
        return []
    base = by_variant.get(baseline, cost)
    compared = [] if base is cost else [f"{baseline}: {_usd(base.usd_per_job)}"]
    if cost.api_usd_per_job is not None:
        compared.append(f"at the API: {_usd(cost.api_usd_per_job)}")
    what = f"per job with {_named(shown)}"
    return [Tile(_usd(cost.usd_per_job), what, "; ".join(["at capacity", *compared]))]


def _usd(value: float) -> str:
    return f"{value:.3g} USD"


def _is_even(each: VariantCapacity) -> bool:
    return each.ratio is None or abs(each.ratio.value - 1) <= EQUAL_WITHIN


def _ratio_tile(each: VariantCapacity, what: str) -> list[Tile]:
    return [] if each.ratio is None else [Tile(times(each.ratio.value), what, interval(each.ratio))]


def _never(lost: Sequence[VariantCapacity]) -> str:
    more = f"; nor with {counted(len(lost) - 1, 'other')}" if len(lost) > 1 else ""
    return f"of those that were tried{some_seeds(lost[0].never)}{more}"


def _named(variant: str) -> str:
    return f"{variant}, stock vLLM" if variant == Fcfs.name else variant


def _jct(answer: Answer) -> list[Tile]:
    point, base, beyond = answer.winner, answer.baseline, answer.beyond
    if point is None or base is None:
        return []
    if beyond is not None:
        sure = f"at {_at(beyond)}, more than {base.variant} sustains"
        return [Tile(seconds(beyond.jct_mean_s.value), f"mean JCT with {beyond.variant}", sure)]
    other = f"; {_interval_s(point)}" if point.jct_mean_s.is_shown else ""
    if base is not point:
        other = f"; {base.variant}: {seconds(base.jct_mean_s.value)}"
    sure = f"at {_at(point)}{other}"
    return [Tile(seconds(point.jct_mean_s.value), f"mean JCT with {point.variant}", sure)]


def _at(point: Point) -> str:
    return point.load if point.amount is None else point.ladder.text(point.amount)


def _of_speed_up(answer: Answer, baseline: str) -> list[Tile]:
    winner, base = answer.winner, answer.baseline
    if winner is None:
        return []
    gain = winner.against
    if gain is None or base is None or gain.mean.value <= 1 + NEGLIGIBLE:
        found = [
            Tile(seconds(winner.jct_mean_s.value), "mean JCT", _interval_s(winner)),
            Tile(seconds(winner.jct_s["jct_p95_s"]), "P95 JCT", counted(winner.jobs, "job")),
            *_loss(answer, baseline),
        ]
    else:
        found = [
            Tile(times(gain.mean.value), "faster on average", interval(gain.mean)),
            Tile(times(gain.p95.value), "faster at P95", interval(gain.p95)),
            Tile(
                seconds(winner.jct_mean_s.value),
                "mean JCT",
                f"{base.variant}: {seconds(base.jct_mean_s.value)}",
            ),
        ]
    if answer.possible is not None and gain is not None:
        found.append(
            Tile(share(answer.possible), "of the possible gain", "the gain of the best reference")
        )
    return found


def _loss(answer: Answer, baseline: str) -> list[Tile]:
    """Show the baseline if it has no steady state, or the slowest variant if none is faster than
    the baseline."""
    winner, slowest = answer.winner, answer.slowest
    if winner is not None and (lacks := winner.baseline_without_steady) is not None:
        return [_unstable(baseline, lacks, winner)]
    if slowest is None or answer.baseline is None:
        return []
    if slowest.unstable:
        return [_unstable(slowest.variant, slowest.without_steady, slowest)]
    if slowest.against is None or slowest.against.mean.value >= 1 - NEGLIGIBLE:
        return []
    gain = slowest.against.mean
    inverse = Estimate(1 / gain.value, 1 / gain.high, 1 / gain.low)
    what = f"as long with {_named(slowest.variant)}, the slowest"
    return [Tile(times(inverse.value), what, interval(inverse))]


def _unstable(variant: str, seeds: SeedShare | None, point: Point) -> Tile:
    why = f"{point.ladder.unstable}{some_seeds(seeds)}"
    return Tile("unstable", f"with {_named(variant)}", why)


def _interval_s(point: Point) -> str:
    own: Estimate = point.jct_mean_s
    return f"95% CI {seconds(own.low)} to {seconds(own.high)}" if own.is_shown else NO_INTERVAL
