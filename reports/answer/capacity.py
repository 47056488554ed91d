"""Answers how many jobs per second, or agents, a machine sustains under each scheduler.

In: capacities over seeds, and points. Out: sentences of at most about 30 words, and the numbers in
them. docs/design/statistics.md, "Capacity", has the rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from reports.answer.capacity_context import CapacityContext, background_per_s
from reports.answer.capacity_headline import headline, value_of
from reports.answer.fails_first import FailsFirst, limited_by, unlimited_kv_sentences
from reports.answer.findings import (
    capacities_against_tuned,
    distance_from_bound,
    distance_from_rate_bound,
)
from reports.answer.headline import MOST_NUMBERS
from reports.answer.left_out import valid_points
from reports.answer.provenance import provenance as provenance_of
from reports.answer.verdict import Answer
from reports.capacity.estimate import Kind
from reports.loads import AGENTS
from reports.metrics.throughput import think_s
from reports.statistics.best import winners
from reports.statistics.bootstrap import interval
from reports.statistics.capacities import VariantCapacity
from reports.statistics.points import Point
from servers.basics.phrasing import counted, listed, seconds, times
from servers.policies.base import UNLIMITED_KV

MOST_SPREAD = 1.5
"""If the ratios of the seeds differ by a larger factor, they are listed beside their mean. They
often form two groups: seeds with which a policy recovers, and the others. Normally distributed
ratios with a standard deviation of 0.1 differ as much only with 24 seeds or more."""
NOTHING_FAILS: Mapping[str, FailsFirst] = {}


def capacity_answer(
    capacities: Sequence[VariantCapacity],
    points: Sequence[Point],
    context: CapacityContext,
    caveats: Sequence[str],
    left_out: Sequence[str] = (),
    fails_first: Mapping[str, FailsFirst] = NOTHING_FAILS,
) -> Answer:
    """`left_out`: sentences about the variants that `capacities` lacks. `fails_first`: what fails
    first above the capacities, by variant."""
    sweep, baseline = context.sweep, context.sweep.baseline
    points = [point for point in valid_points(points) if point.reference != UNLIMITED_KV]
    best = winners(capacities)
    base = next((c for c in capacities if c.variant == baseline), None)
    names = [c.variant for c in best]
    both = [*best[:1], *([base] if base is not None and base not in best[:1] else [])]
    limits = limited_by(capacities, burst=context.begins_with_burst)
    first = [(each, fails_first.get(each.variant)) for each in both]
    reasons = [limit.sentence(each.variant, each.ladder) for each, limit in first if limit]
    # Schedulers that tie with the baseline are not compared with it: the differences are noise.
    shown = [baseline] if baseline in names else names
    load, point, base_point = _compared(shown, base, points)
    findings = [
        meaning(context),
        *capacities_against_tuned(capacities, sweep),
        *_jct(point, base_point, base),
        *_on_most_days(best, base, context),
        *reasons,
        *unlimited_kv_sentences(both, capacities, limits),
        *_resources(best, base, context),
        *distance_from_rate_bound(capacities, points),
        *distance_from_bound(points, load),
    ]
    return Answer(
        " ".join([headline(capacities, best, context), *left_out]),
        tuple(findings),
        (*_own_caveats(capacities, context), *caveats),
        provenance_of(sweep),
        load,
        point,
        base_point,
        capacities=tuple(capacities),
        fails_first=fails_first,
        reasons=tuple(reasons),
        limited_by=limits,
        winners=tuple(names),
        beyond=_beyond(best, base, points),
    )


def _compared(
    names: Sequence[str], base: VariantCapacity | None, points: Sequence[Point]
) -> tuple[str | None, Point | None, Point | None]:
    """Return the load at which JCTs are compared, with the points of the highest winner that ran
    there and of the baseline. It is the highest load that the baseline sustains with every seed and
    at which both are stable; above it, the baseline's JCTs differ by factors between seeds."""
    most = min(base.loads.values(), default=math.inf) if base is not None else math.inf
    stable = [
        p
        for p in points
        if not (p.saturated or p.is_mixed) and p.amount is not None and p.amount <= most
    ]
    for load in dict.fromkeys(p.load for p in sorted(stable, key=lambda p: -(p.amount or 0))):
        here = {p.variant: p for p in stable if p.load == load}
        best = next((here[name] for name in names if name in here), None)
        own = here.get(base.variant) if base is not None else None
        if best is not None and own is not None:
            return load, best, own
    return (points[0].load if points else None), None, None


def meaning(context: CapacityContext) -> str:
    """Return sentences that explain what a sustained load is."""
    idle = f"On an idle machine the mean JCT is {seconds(context.idle_mean_s)}."
    if context.ladder is AGENTS:
        other = "" if context.agents else " With --arrivals poisson the search is for jobs/s."
        pause_s = think_s(context.sweep.arrivals or "")
        when = f"{seconds(pause_s)} on average after" if pause_s else "as soon as"
        return (
            f"Sustained: {context.slo.describe()}, with this many agents, each of which"
            f" starts a new job {when} its last one has ended.{other} {idle}"
        )
    if (horizon := context.sweep.horizon) is not None:
        begin = "" if horizon.burst else ", from an empty machine"
        kind, _, profile = (context.sweep.arrivals or "").partition(":")
        name = "the hours of the given profile" if "," in profile else f"the hours of day:{profile}"
        hours = f", at rates of this mean that follow {name}" if kind == "day" else ""
        return (
            f"Sustained: {context.slo.describe()}, over all jobs that arrive in"
            f" {horizon.in_words}{hours}{begin}. {idle}"
        )
    return (
        f"Sustained: {context.slo.describe()}, and a queue that does not grow, even after a burst"
        f" of jobs. Differences are usually smaller without such a burst. {idle}"
    )


def _jct(point: Point | None, base: Point | None, capacity: VariantCapacity | None) -> list[str]:
    if point is None or base is None:
        return []
    at = capacity.load if capacity is not None else None
    own = f"the mean JCT is {seconds(point.jct_mean_s.value)} with {point.variant}"
    share = (
        f", {base.amount / at.value:.0%} of {base.variant}'s capacity" if at and base.amount else ""
    )
    if point is base:
        return [f"At {point.load}{share}, {own}."]
    gain = point.against
    ratio = f", {times(gain.mean.value)} as long ({interval(gain.mean)})" if gain else ""
    theirs = f"{base.variant} takes {seconds(base.jct_mean_s.value)}"
    return [f"At {point.load}{share}, {own}; {theirs}{ratio}."]


def _beyond(
    best: Sequence[VariantCapacity], base: VariantCapacity | None, points: Sequence[Point]
) -> Point | None:
    """Return the winner with the highest capacity, at the highest rate that it sustains with every
    seed and the baseline with none."""
    if base is None or base in best or base.kind is not Kind.FOUND:
        return None
    least = max(base.loads.values())
    most = {c.variant: min(c.loads.values(), default=0.0) for c in best}
    rank = {c.variant: place for place, c in enumerate(best)}
    beyond = [
        (p.amount, -rank[p.variant], p)
        for p in points
        if p.amount is not None and not p.saturated and least < p.amount <= most.get(p.variant, 0.0)
    ]
    return max(beyond, key=lambda e: e[:2])[2] if beyond else None


def _resources(
    best: Sequence[VariantCapacity], base: VariantCapacity | None, context: CapacityContext
) -> list[str]:
    """State how many GPUs a round load above one machine's capacity needs, and what it costs."""
    if not best or best[0].load is None:
        return []
    shown = [best[0]]
    if base is not None and base.load is not None:
        shown = [base] if base in best else [best[0], base]
    target = 10.0 ** math.ceil(math.log10(2 * max(value_of(c).value for c in shown)))
    if context.agents is not None:
        target = context.agents
    gpus = [
        f"{counted(context.price.gpus_for(target, value_of(c).value, context.ladder), 'GPU')}"
        f" with {c.variant}"
        for c in shown
    ]
    needs = "1 job/s needs" if target == 1 else f"{target:g} jobs/s need"
    if context.ladder is AGENTS:
        needs = "1 agent needs" if target == 1 else f"{target:g} agents need"
    sentences = [f"{needs} {listed(gpus)}{_background(context)}."]
    if not math.isnan(context.price.usd_per_h):
        paid = ", with the background included" if background_per_s(context.sweep) else ""
        sentences.append(f"{_costs(shown, context)}, at capacity{paid}.")
    return sentences


def _costs(shown: Sequence[VariantCapacity], context: CapacityContext) -> str:
    is_agents = context.ladder is AGENTS
    what = "An agent that works all month costs" if is_agents else "A thousand jobs cost"
    cost = partial(context.price.usd, ladder=context.ladder)
    return (
        f"{what} {listed([f'{cost(value_of(c).value):.3g} USD with {c.variant}' for c in shown])}"
    )


def _on_most_days(
    best: Sequence[VariantCapacity], base: VariantCapacity | None, context: CapacityContext
) -> list[str]:
    """State what is sustained not only on average. A seed is a draw of all arrivals and jobs within
    the horizon."""
    if context.sweep.horizon is None:
        return []
    shown = {each.variant: each for each in (*best[:MOST_NUMBERS], base) if each is not None}
    rates = [f"{at:.3g} with {c.variant}" for c in shown.values() if (at := c.on_most) is not None]
    if not rates:
        return []
    return [
        f"95% of such periods of {context.sweep.horizon.in_words} sustain at least, in jobs/s:"
        f" {listed(rates)} (predicted from {counted(len(context.sweep.seeds), 'seed')})."
    ]


def _background(context: CapacityContext) -> str:
    if not background_per_s(context.sweep):
        return ""
    gpus = context.price.gpus
    machine = "each" if gpus == 1 else f"each machine of {counted(gpus, 'GPU')}"
    return f", {machine} alongside {background_per_s(context.sweep):g} background requests/s"


def _own_caveats(capacities: Sequence[VariantCapacity], context: CapacityContext) -> list[str]:
    caveats, baseline = [], context.sweep.baseline
    if still := [c.variant for c in capacities if c.kind is Kind.OPEN]:
        caveats.append(
            f"The search has not finished for {listed(still)}, which therefore cannot win. The same"
            " command continues it."
        )
    caveats += [
        f"{each.variant} sustains {times(low)} to {times(high)} as many as {baseline},"
        " depending on the seed: a mean over such seeds describes none of them."
        for each in winners(capacities)[:1]
        if (spread := _ratios(each, capacities, baseline))
        if (high := max(spread)) > MOST_SPREAD * (low := min(spread))
    ]
    if len(context.sweep.seeds) == 1:
        caveats.append(
            "One seed: capacities have no interval, and other arrivals and programs may change the"
            " order. Use --seeds 1..3 or more."
        )
    return caveats


def _ratios(
    each: VariantCapacity, capacities: Sequence[VariantCapacity], baseline: str
) -> list[float]:
    base = next((c.loads for c in capacities if c.variant == baseline), {})
    return [each.loads[seed] / base[seed] for seed in sorted(each.loads.keys() & base.keys())]
