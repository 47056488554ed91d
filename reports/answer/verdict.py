"""Determines the answer of a run: the fastest variant, its gain, the uncertainty and the caveats.

In: points. Out: sentences and the numbers in them. docs/design/statistics.md, "The answer", has the
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports.answer.caveats import caveats_of, cells_without_a_valid_result, short_run
from reports.answer.left_out import points_left_out, valid_points
from reports.answer.noise import is_noise_covered, noise, noise_at, second_arms, untested
from reports.answer.optimum import distance_from_bound
from reports.answer.provenance import provenance as provenance_of
from reports.answer.same_work import different_times
from reports.answer.speed_headline import NEGLIGIBLE, headline, names_all
from reports.metrics.cells import Results
from reports.phrasing import listed, seconds, share, times
from reports.statistics.bootstrap import Estimate, widened_by
from reports.statistics.capacities import VariantCapacity
from reports.statistics.points import Comparison, Point, compare, compare_by_seed
from reports.statistics.seeds_needed import advice


@dataclass(frozen=True, slots=True)
class Answer:
    headline: str
    findings: tuple[str, ...]
    caveats: tuple[str, ...]
    provenance: str
    load: str | None = None
    """The load that the headline is about."""
    winner: Point | None = None
    baseline: Point | None = None
    possible: float | None = None
    """Share of the best bound's gain that the winner achieves."""
    capacities: tuple[VariantCapacity, ...] = ()
    """Empty if the run did not search capacities."""
    winners: tuple[str, ...] = ()
    """Variants with the highest capacity, or the fastest at `load` with those that tie."""
    beyond: Point | None = None
    """A winner at a rate that the baseline does not sustain."""

    @property
    def sentences(self) -> list[str]:
        return [self.headline, *self.findings, *self.caveats, self.provenance]


def answer(
    points: Sequence[Point], results: Results, sweep: dict[str, Any], also: str | None = None
) -> Answer:
    """Return the answer. `also` is one more caveat."""
    baseline, provenance = str(sweep["baseline"]), provenance_of(sweep)
    different = different_times(results, sweep)
    caveats = (*filter(None, [also]), *different, *caveats_of(points, results, sweep))
    arms, every = second_arms(sweep), points
    measured = [p for p in points if p.variant not in arms]
    points = valid_points(measured)
    contenders = [p for p in points if not p.bound]
    if not contenders:
        sentence = " ".join([_no_answer(results), *points_left_out(measured, results, None)])
        return Answer(sentence, (), caveats, provenance)
    load, note = _headline_load(contenders)
    left_out = points_left_out(measured, results, load)
    here = [p for p in points if p.load == load]
    there = _at(contenders, load)
    winner = min([p for p in there if not p.saturated] or there, key=_mean_s)
    base = next((p for p in here if p.variant == baseline), None)
    possible, bound_finding = _bound(here, base, winner)
    versus = compare_by_seed if sweep.get("steady_state") else compare
    rivals = [p for p in here if p is not winner and not p.bound and p.variant != baseline]
    if not is_noise_covered(sweep):
        rivals = []  # Nothing was tested.
    tied = _tied(rivals, winner, results, versus, noise_at(every, arms, load).mean)
    level = [p for p in there if p.variant in tied]
    named = names_all(winner, level)
    findings = [
        *([note] if note else _saturated_baseline(base, winner)),
        *_faster_but_saturated(there, winner),
        *_how_to_separate(winner),
        *_ties(winner, tied, named=named),
        *bound_finding,
        *distance_from_bound(points, load),
        *_others(here, base, winner, tied, named=named),
        *_above(contenders, winner, baseline),
        *_no_difference(points, baseline),
    ]
    lacking = f"The baseline {baseline} has no {_what_lacks(results, load, baseline)} here."
    alone = _alone(there, measured)
    sentence = headline(there, winner, level, base, lacking, alone)
    of_noise, within_noise = noise(every, arms, load)
    findings = [*of_noise, *findings]
    invalid = cells_without_a_valid_result(results)
    others = [caveat for caveat in caveats if caveat not in invalid]
    caveats = (*invalid, *untested(sweep), *within_noise, *short_run(winner, sweep), *others)
    names = (winner.variant, *tied)
    sentence = " ".join([sentence, *left_out])
    return Answer(
        sentence, tuple(findings), caveats, provenance, load, winner, base, possible, winners=names
    )


def _alone(there: Sequence[Point], measured: Sequence[Point]) -> str:
    """Say why there is no other variant; empty if there is one."""
    if len({p.variant for p in measured if not p.bound}) == 1:
        return "The run has no variant to compare it with."
    if len(there) == 1 and any(p.failed_gates for p in _at(measured, there[0].load)):
        return "No other variant has a valid result here."
    return ""


def _no_answer(results: Results) -> str:
    if results.cells.empty:
        return "No cell has finished: there is no answer yet."
    if (results.cells["failed_gates"] != "").all():
        return "No cell has a valid result: there is no answer."
    return "No scheduler has a steady state at the rates of this run: run lower rates."


def _headline_load(contenders: Sequence[Point]) -> tuple[str, str | None]:
    """Return the highest load at which some variant is not saturated.

    If there is none, return the lowest load and a finding that says so.
    """
    loads = list(dict.fromkeys(p.load for p in contenders))
    for load in reversed(loads):
        if not all(p.saturated for p in _at(contenders, load)):
            return load, None
    return loads[0], (
        f"Every variant is past saturation at {loads[0]}, the lowest load of the run, so JCTs grow"
        " with the number of jobs. Run lower rates."
    )


def _at(points: Sequence[Point], load: str) -> list[Point]:
    return [p for p in points if p.load == load]


def _saturated_baseline(base: Point | None, winner: Point) -> list[str]:
    if base is None or not base.saturated or winner.saturated:
        return []
    return [
        f"{base.variant} is past saturation at this load and {winner.variant} is not, so the"
        " difference would be larger with more jobs in the run."
    ]


def _faster_but_saturated(there: Sequence[Point], winner: Point) -> list[str]:
    faster = [p for p in there if _mean_s(p) < _mean_s(winner)]
    names = listed([f"{p.variant} ({seconds(_mean_s(p))})" for p in sorted(faster, key=_mean_s)])
    return [f"Faster in this run, but past saturation: {names}."] if faster else []


def _how_to_separate(winner: Point) -> list[str]:
    """Say how many seeds would find a difference that is large but not significant."""
    gain = winner.against
    if gain is None or gain.mean.differs_from_one or gain.mean.value <= 1 + NEGLIGIBLE:
        return []
    return advice(gain.seeds, gain.seeds_needed)


def _what_lacks(results: Results, load: str, variant: str) -> str:
    cells = results.cells
    own = cells[(cells["load"] == load) & (cells["variant"] == variant)]
    if (own["unstable"] != "").any():
        return "steady state"
    return "valid result" if (own["failed_gates"] != "").any() else "result"


def _tied(
    rivals: Sequence[Point],
    winner: Point,
    results: Results,
    versus: Callable[[pd.DataFrame, pd.DataFrame], Comparison | None],
    noise: float,
) -> dict[str, Comparison]:
    """Return the variants that do not differ significantly from the winner, or not by more than two
    measurements of one variant: `noise` is the logarithm of their ratio. One seed cannot say."""
    jobs = results.jobs[results.jobs["load"] == winner.load]
    best = jobs[jobs["variant"] == winner.variant]
    tied: dict[str, Comparison] = {}
    for point in rivals:
        if point.saturated and not winner.saturated:
            continue
        gain = versus(jobs[jobs["variant"] == point.variant], best)
        if gain is None or not gain.mean.has_interval:
            continue
        if not widened_by(gain.mean, noise).differs_from_one:
            tied[point.variant] = gain
    return tied


def _ties(winner: Point, tied: dict[str, Comparison], *, named: bool) -> list[str]:
    """Name the variants that tie, unless the headline names them, and say how many seeds would
    separate them."""
    if not tied:
        return []
    needed = max(gain.seeds_needed for gain in tied.values())
    more = advice(max(gain.seeds for gain in tied.values()), needed)
    names = f"No significant difference from {winner.variant}: {listed(list(tied))}."
    return [" ".join(more if named else [names, *more])] if more or not named else []


def _bound(
    here: Sequence[Point], base: Point | None, winner: Point
) -> tuple[float | None, list[str]]:
    """Return the winner's share of the best reference's gain, (base - winner) / (base - reference).

    One without offload is compared with the best variant without offload.
    """
    bounds = [p for p in here if p.bound and p.against is not None]
    if not bounds or base is None:
        return None, []
    best = min(bounds, key=_mean_s)
    gain, name = best.against, f"The reference {best.variant}, which knows the future,"
    possible_s = _mean_s(base) - _mean_s(best)
    if gain is None or possible_s <= NEGLIGIBLE * _mean_s(base):
        return None, [f"{name} is hardly faster, so a scheduler can gain little here."]
    alike = [p for p in here if not p.bound and p.offload == best.offload]
    if not alike:
        return None, [f"{name} reaches {times(gain.mean.value)}."]
    fastest = min(alike, key=_mean_s)
    achieved = (_mean_s(base) - _mean_s(fastest)) / possible_s
    note = "" if fastest is winner else f", {'with' if best.offload else 'without'} offload"
    reached = f"{name} reaches {times(gain.mean.value)}{note}"
    if achieved > 1:
        return None, [f"{reached}, less than {fastest.variant}."]
    if fastest is base:
        return None, [f"{reached}, which is the possible gain."]
    finding = f"{reached}; {fastest.variant} achieves {share(achieved)} of that gain."
    return achieved if fastest is winner else None, [finding]


def _mean_s(point: Point) -> float:
    return point.jct_mean_s.value


def _others(
    here: Sequence[Point],
    base: Point | None,
    winner: Point,
    tied: Collection[str],
    *,
    named: bool,
) -> list[str]:
    """Compare the other variants with the baseline. `tied` ones are not named as similar again, nor
    as faster if the headline names them."""
    rest = sorted(
        (p for p in here if p not in (winner, base) and not p.bound and p.against is not None),
        key=_mean_s,
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
        sentences.append(f"{comparison} than {name}: {_with_gains(faster)}.")
    if slower:
        sentences.append(f"Slower than {name}: {_with_gains(slower)}.")
    if unclear:
        tested = all(gain.has_interval for _, gain in unclear)
        state = (
            "No significant difference from"
            if tested
            else "Not tested, with too few seeds, against"
        )
        sentences.append(f"{state} {name}: {_with_gains(unclear)}.")
    if similar:
        sentences.append(f"Similar to {name}: {listed(similar)}.")
    return sentences


def _with_gains(rated: Sequence[tuple[str, Estimate]]) -> str:
    return listed([f"{name} {times(gain.value)}" for name, gain in rated])


def _above(contenders: Sequence[Point], winner: Point, baseline: str) -> list[str]:
    """Return a finding about the highest rate if the headline is about a lower one."""
    highest = contenders[-1].load
    best = min(_at(contenders, highest), key=_mean_s)
    if winner.saturated or highest == winner.load or best.against is None:
        return []
    return [
        f"At {highest} every variant is past saturation. The fastest, {best.variant}, has"
        f" {times(best.against.mean.value)} the speed of {baseline}."
    ]


def _no_difference(points: Sequence[Point], baseline: str) -> list[str]:
    loads: list[str] = []
    for load in dict.fromkeys(p.load for p in points):
        gains = [p.against.mean.value for p in _at(points, load) if p.against is not None]
        if not gains or any(abs(1 / gain - 1) > NEGLIGIBLE for gain in gains):
            break
        loads.append(load)
    if not loads:
        return []
    place = f"At {loads[0]}" if len(loads) == 1 else f"Up to {loads[-1]}"
    finding = (
        f"{place} the choice makes little difference: all variants are within {NEGLIGIBLE:.0%} of"
        f" {baseline}."
    )
    if loads[-1] != points[-1].load:
        return [finding]
    return [f"{finding} Higher rates or a smaller machine (--hardware) would separate them."]
