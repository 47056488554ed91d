"""Determines the answer of a run: the fastest variant, its gain, the uncertainty and the caveats.

In: points. Out: sentences and the numbers in them. docs/design/statistics.md, "The answer", has the
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pandas as pd

from reports.answer import noise
from reports.answer.capacity_context import noun_of
from reports.answer.caveats import (
    caveats_of,
    cells_without_a_valid_result,
    jobs_per_cell,
    short_run,
)
from reports.answer.costs import JobCost, OtherUnits
from reports.answer.fails_first import FailsFirst, LimitedBy
from reports.answer.findings import (
    at_load,
    distance_from_bound,
    jcts_against_tuned,
    mean_s,
    no_difference,
    possible_gain,
)
from reports.answer.headline import MOST_NAMES, NEGLIGIBLE, Contender, Ranking
from reports.answer.left_out import points_left_out, so_far, valid_points
from reports.answer.provenance import provenance as provenance_of
from reports.loads import AGENTS
from reports.metrics.cells import Results, ladder_in
from reports.statistics.bootstrap import Estimate, widened_by
from reports.statistics.capacities import VariantCapacity, some_seeds
from reports.statistics.over_seeds import ROUNDING
from reports.statistics.points import (
    Comparison,
    Point,
    compare,
    seeds_without_steady,
    with_unstable,
)
from servers.basics.phrasing import listed, seconds
from servers.policies.base import UNLIMITED_KV
from servers.records.sweep import SweepRecord


@dataclass(frozen=True, slots=True)
class Answer:
    headline: str
    findings: tuple[str, ...]
    caveats: tuple[str, ...]
    provenance: str
    load: str | None = None
    """The load of the headline."""
    winner: Point | None = None
    baseline: Point | None = None
    possible: float | None = None
    """The winner's share of the best reference's gain."""
    capacities: tuple[VariantCapacity, ...] = ()
    """Empty if the run did not search capacities."""
    fails_first: Mapping[str, FailsFirst] = field(default_factory=dict)
    """What fails first above the capacities, by variant."""
    reasons: tuple[str, ...] = ()
    """Those findings that say so of the winner and of the baseline."""
    limited_by: Mapping[str, LimitedBy] = field(default_factory=dict)
    """What limits the capacities, by variant; empty without a reference with unlimited KV."""
    other_units: Mapping[str, OtherUnits] = field(default_factory=dict)
    """The capacities in other units, by variant."""
    winners: tuple[str, ...] = ()
    """Variants with the highest capacity, or the fastest at `load`, including ties."""
    beyond: Point | None = None
    """A winner at a rate that the baseline does not sustain."""
    costs: tuple[JobCost, ...] = ()
    """Of variants whose capacity is a number; empty if the hardware has no price."""
    slowest: Point | None = None
    """The slowest at `load`, or a variant without a steady state. None with capacities."""

    @property
    def sentences(self) -> list[str]:
        return [self.headline, *self.findings, *self.caveats, self.provenance]


def answer(
    points: Sequence[Point], results: Results, sweep: SweepRecord, also: str | None = None
) -> Answer:
    """Return the answer. `also` is an additional caveat."""
    baseline, provenance = sweep.baseline, provenance_of(sweep)
    noun, different = noun_of(sweep), noise.different_times(results, sweep)
    caveats = (
        *filter(None, [also]),
        *different,
        *caveats_of(points, results, sweep, at_rates=True),
    )
    arms, every = noise.second_arms(sweep), points
    measured = [p for p in points if not (p.variant in arms or p.reference == UNLIMITED_KV)]
    points = valid_points(measured)
    contenders = [p for p in points if not p.reference]
    if not contenders:
        sentence = " ".join([_no_answer(results, noun), *points_left_out(measured, results, None)])
        return Answer(sentence, (), caveats, provenance)
    load, note = _headline_load(contenders)
    left_out = points_left_out(measured, results, load)
    here = [p for p in points if p.load == load]
    there = at_load(contenders, load)
    shown = [p for p in with_unstable(measured, results) if not p.failed_gates]
    lost = [p for p in at_load(shown, load) if p.unstable and not p.reference]
    winner = min([p for p in there if not p.saturated] or there, key=mean_s)
    behind = [p for p in there if p.saturated and mean_s(p) < mean_s(winner)]
    base = next((p for p in here if p.variant == baseline), None)
    possible, reference_finding = possible_gain(here, base, winner)
    versus = _versus(sweep)
    rivals = [p for p in here if p is not winner and not p.reference and p.variant != baseline]
    level = _tied(rivals, winner, results, versus, noise.noise_at(every, arms, load).mean)
    short = short_run(winner, sweep)
    of_noise, within_noise = noise.findings_and_caveats(every, arms, load)
    invalid = cells_without_a_valid_result(results)
    rest = [caveat for caveat in caveats if caveat not in invalid]
    caveats = (*invalid, *noise.untested(sweep), *within_noise, *short, *rest)
    if jobs_per_cell(winner, sweep) == 1:
        sentence = " ".join([_one_job(there, noun), *left_out])
        return Answer(sentence, tuple(of_noise), caveats, provenance, load)
    findings = [
        *of_noise,
        *([note] if note else []),
        *jcts_against_tuned(there, results.jobs[results.jobs["load"] == load], sweep, versus),
        *reference_finding,
        *distance_from_bound(points, load),
        *no_difference(shown, baseline, short=bool(short)),
    ]
    is_better = KEEPS_UP if behind else "is faster"
    ranking = _ranking(winner, level, base, len(there) + len(lost), sweep, is_better)
    sentences = [ranking.sentence()]
    if behind:
        sentences.append(_behind(sorted(behind, key=mean_s)))
    if not lost and (alone := _alone(there, measured, sweep)):
        sentences.append(alone)
    elif base is None:
        sentences.append(f"The baseline {baseline} has no {_what_lacks(results, load, baseline)}.")
    return Answer(
        so_far(" ".join([*sentences, *left_out]), results.missing, len(results.cells)),
        tuple(findings),
        caveats,
        provenance,
        load,
        winner,
        base,
        possible,
        winners=(winner.variant, *(p.variant for p, _ in level)),
        slowest=max(lost, key=lambda p: p.without_steady.seeds if p.without_steady else 0)
        if lost
        else max(there, key=lambda p: (p.saturated, mean_s(p))),
    )


def _versus(sweep: SweepRecord) -> Callable[[pd.DataFrame, pd.DataFrame], Comparison | None]:
    versus = partial(compare, steady=sweep.steady_state)
    if noise.is_noise_covered(sweep):
        return versus
    return lambda base, own: noise.without_intervals(versus(base, own))


def _ranking(
    winner: Point,
    level: Sequence[tuple[Point, Estimate]],
    base: Point | None,
    everyone: int,
    sweep: SweepRecord,
    is_better: str,
) -> Ranking:
    """`level`: the variants that tie with the winner, and its gains over them. `everyone`: how many
    were compared. A tie whose gains are negligible is not a lack of seeds, and says so."""
    best, gains = [winner, *(point for point, _ in level)], [gain for _, gain in level]
    gain = None if winner.against is None else winner.against.mean
    if base is not None and base is not winner and gain is not None:
        if abs(gain.value - 1) <= NEGLIGIBLE:
            best, gains = [winner, base], [gain]
        elif gain.value < 1 or (gain.has_interval and not gain.differs_from_one):
            best, gains = [*best, base], [*gains, gain]
    best.sort(key=mean_s)
    tie = f"are not distinguished with {noise.in_words(sweep)}"
    if all(map(_is_negligible, gains)):
        tie = f"differ by at most {NEGLIGIBLE:.0%}"
    return Ranking(
        [
            Contender(p.variant, mean_s(p), _jct(p), p.against.mean if p.against else None)
            for p in best
        ],
        everyone=len(best) == everyone,
        baseline=sweep.baseline,
        within=NEGLIGIBLE,
        tie=tie,
        noun=noun_of(sweep),
        place=f"{'at' if winner.load[:1].isdigit() else 'with arrivals'} {winner.load}",
        has="has a mean job completion time (JCT) of",
        is_better=is_better,
        as_many="as fast",
    )


def _is_negligible(gain: Estimate) -> bool:
    """Return whether a gain is negligible at both ends of its interval, if it has one."""
    ends = (gain.low, gain.high) if gain.has_interval else (gain.value,)
    return all(abs(end - 1) <= NEGLIGIBLE for end in ends)


def _jct(point: Point) -> str:
    return seconds(mean_s(point))


def _one_job(there: Sequence[Point], noun: str) -> str:
    times_s = [_jct(point) for point in sorted(there, key=mean_s)]
    took = times_s[0] if times_s[0] == times_s[-1] else f"{times_s[0]} to {times_s[-1]}"
    return (
        f"One job cannot distinguish {noun}s, because it has the server to itself: it took"
        f" {took}. Use more programs."
    )


KEEPS_UP = "that finishes jobs as fast as they arrive is faster"


def _behind(points: Sequence[Point]) -> str:
    names = listed([f"{p.variant} ({_jct(p)})" for p in points], at_most=MOST_NAMES)
    return f"It is shorter with {names}, but there jobs arrive faster than they finish."


def _alone(there: Sequence[Point], measured: Sequence[Point], sweep: SweepRecord) -> str:
    if len({p.variant for p in measured if not p.reference}) == 1:
        if sum(not v.reference and not v.same_as for v in sweep.variants) > 1:
            return "No other variant has a result."
        return "The run has no variant to compare it with."
    if len(there) == 1 and any(p.failed_gates for p in at_load(measured, there[0].load)):
        return "No other variant has a valid result here."
    return ""


def _no_answer(results: Results, noun: str) -> str:
    if results.cells.empty:
        return "No cell has finished: there is no answer yet."
    if (results.cells["failed_gates"] != "").all():
        return "No cell has a valid result: there is no answer."
    lacking = seeds_without_steady(results.cells[results.cells["reference"] == ""])
    some = " with every seed" if any(seeds.is_mixed for seeds in lacking.values()) else ""
    if ladder_in(results.cells) is AGENTS:
        return f"No {noun} has a steady state{some} with these numbers of agents: run fewer."
    return f"No {noun} has a steady state{some} at the rates of this run: run lower rates."


def _headline_load(contenders: Sequence[Point]) -> tuple[str, str | None]:
    """Return the highest load at which some variant is not saturated.

    If there is none, return the lowest load and a finding that states it.
    """
    loads = list(dict.fromkeys(p.load for p in contenders))
    for load in reversed(loads):
        if not all(p.saturated for p in at_load(contenders, load)):
            return load, None
    if contenders[0].amount is not None:
        remedy = "Run fewer agents" if contenders[0].ladder is AGENTS else "Run lower rates"
        where = f"at {loads[0]}, the lowest load of the run"
    else:
        where, remedy = f"with {loads[0]} arrivals", "Give lower rates with --jps, or more GPUs"
    return loads[0], (
        f"Every variant is past saturation {where}, so JCTs grow with the number of jobs. {remedy}."
    )


def _what_lacks(results: Results, load: str, variant: str) -> str:
    cells = results.cells
    if seeds := seeds_without_steady(cells).get((load, variant)):
        return f"steady state here{some_seeds(seeds)}"
    own = cells[(cells["load"] == load) & (cells["variant"] == variant)]
    return "valid result here" if (own["failed_gates"] != "").any() else "result here"


def _tied(
    rivals: Sequence[Point],
    winner: Point,
    results: Results,
    versus: Callable[[pd.DataFrame, pd.DataFrame], Comparison | None],
    log_noise: float,
) -> list[tuple[Point, Estimate]]:
    """Return the variants that are not distinguished from the winner, or differ by no more than two
    measurements of one variant, whose log ratio is `log_noise`, with the winner's gains over them.
    One seed cannot show a tie, unless the results are equal: behind one router two policies can act
    the same."""
    jobs = results.jobs[results.jobs["load"] == winner.load]
    best = jobs[jobs["variant"] == winner.variant]
    tied = []
    for point in rivals:
        if point.saturated and not winner.saturated:
            continue
        gain = versus(jobs[jobs["variant"] == point.variant], best)
        if gain is None:
            continue
        if not gain.mean.has_interval:
            if abs(gain.mean.value - 1) <= ROUNDING:
                tied.append((point, gain.mean))
        elif not widened_by(gain.mean, log_noise).differs_from_one:
            tied.append((point, gain.mean))
    return tied
