"""The answer of a run: which variant is fastest, by how much, how certain that is, and its caveats.

In: points. Out: sentences and the numbers in them. docs/design/statistics.md, "The answer", has the
rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reports.answer.caveats import caveats_of, short_run
from reports.answer.provenance import provenance as provenance_of
from reports.metrics.cells import Results
from reports.phrasing import listed, seconds, share, times
from reports.statistics.bootstrap import Estimate, interval
from reports.statistics.points import Comparison, Point, compare
from reports.statistics.seeds_needed import advice

SAME = 0.02
"""Mean JCTs that differ by at most this share do not differ in practice."""


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
    """Share of a bound's gain that the winner captures."""

    @property
    def sentences(self) -> list[str]:
        return [self.headline, *self.findings, *self.caveats, self.provenance]


def answer(
    points: Sequence[Point], results: Results, sweep: dict[str, Any], also: str | None = None
) -> Answer:
    """`also` is one more caveat."""
    baseline, provenance = str(sweep["baseline"]), provenance_of(sweep)
    caveats = (*filter(None, [also]), *caveats_of(points, results, sweep))
    contenders = [p for p in points if not p.bound]
    if not contenders:
        return Answer("No cell has finished: there is no answer yet.", (), caveats, provenance)
    load, note = _headline_load(contenders)
    here = [p for p in points if p.load == load]
    there = _at(contenders, load)
    winner = min([p for p in there if not p.saturated] or there, key=_mean_s)
    base = next((p for p in here if p.variant == baseline), None)
    possible, about_bound = _bound(here, base, winner)
    findings = [
        *([note] if note else _saturated_baseline(base, winner)),
        *_faster_but_saturated(there, winner),
        *_how_to_separate(winner),
        *_tied(here, winner, results),
        *about_bound,
        *_others(here, base, winner),
        *_above(contenders, winner, baseline),
        *_no_difference(points, baseline),
    ]
    headline = _headline(winner, base, baseline, len({p.variant for p in contenders}))
    caveats = (*short_run(winner, sweep), *caveats)
    return Answer(headline, tuple(findings), caveats, provenance, load, winner, base, possible)


def _headline_load(contenders: Sequence[Point]) -> tuple[str, str | None]:
    """The highest load at which some variant is not saturated, else the lowest; and a finding that
    says so in the second case."""
    loads = list(dict.fromkeys(p.load for p in contenders))
    for load in reversed(loads):
        if not all(p.saturated for p in _at(contenders, load)):
            return load, None
    return loads[0], (
        f"Every variant is past saturation at {loads[0]}, the lowest load of the run: times grow"
        " with the number of jobs. Run lower rates."
    )


def _at(points: Sequence[Point], load: str) -> list[Point]:
    return [p for p in points if p.load == load]


def _place(load: str) -> str:
    return f"At {load}" if load.endswith("jobs/s") else f"With {load} arrivals"


def _headline(winner: Point, base: Point | None, baseline: str, variants: int) -> str:
    place, name, mean = _place(winner.load), winner.variant, winner.jct_mean_s
    p95 = winner.jct_s["jct_p95_s"]
    jct = f"mean job completion time (JCT) is {seconds(mean.value)}, and {seconds(p95)} at P95"
    if variants == 1:
        return f"{place} the {jct}, with {name}. The run has no variant to compare it with."
    if base is None:
        return f"{place} {name} is fastest: its {jct}. The baseline {baseline} has no result here."
    if winner is base or winner.against is None:
        return f"{place} no scheduler is faster than {baseline}: its {jct}."
    gain = winner.against
    if gain.mean.value <= 1 + SAME:
        return (
            f"{place} the choice of scheduler makes little difference: the fastest, {name}, is"
            f" within {SAME:.0%} of {baseline}. Its {jct}."
        )
    if not gain.mean.differs_from_one:
        return (
            f"{place} no scheduler differs significantly from {baseline}: the fastest, {name}, is"
            f" {times(gain.mean.value)} as fast ({interval(gain.mean)}). Its {jct}."
        )
    return (
        f"{place} {name} is {times(gain.mean.value)} faster than {baseline} on average"
        f" ({interval(gain.mean)}) and {times(gain.p95.value)} at P95: the mean job completion time"
        f" (JCT) is {seconds(mean.value)} instead of {seconds(base.jct_mean_s.value)}."
    )


def _saturated_baseline(base: Point | None, winner: Point) -> list[str]:
    if base is None or not base.saturated or winner.saturated:
        return []
    return [
        f"{base.variant} is past saturation at this load and {winner.variant} is not: with more"
        " jobs in the run the difference would be larger."
    ]


def _faster_but_saturated(there: Sequence[Point], winner: Point) -> list[str]:
    faster = [p for p in there if _mean_s(p) < _mean_s(winner)]
    took = listed([f"{p.variant} ({seconds(_mean_s(p))})" for p in sorted(faster, key=_mean_s)])
    return [f"Faster in this run, but past saturation: {took}."] if faster else []


def _how_to_separate(winner: Point) -> list[str]:
    """What it takes to find a difference from the baseline that is large but not significant."""
    gain = winner.against
    if gain is None or gain.mean.differs_from_one or gain.mean.value <= 1 + SAME:
        return []
    return advice(gain.seeds, gain.seeds_needed)


def _tied(here: Sequence[Point], winner: Point, results: Results) -> list[str]:
    """Variants that do not differ significantly from the winner, paired with it by program."""
    jobs = results.jobs[results.jobs["load"] == winner.load]
    best = jobs[jobs["variant"] == winner.variant]
    tied: dict[str, Comparison] = {}
    for point in here:
        if point is winner or point.bound or point.against is None:
            continue
        gain = compare(jobs[jobs["variant"] == point.variant], best)
        if gain is not None and not gain.mean.differs_from_one:
            tied[point.variant] = gain
    if not tied:
        return []
    needed = [gain.seeds_needed for gain in tied.values()]
    more = advice(max(gain.seeds for gain in tied.values()), max(needed))
    return [
        " ".join([f"No significant difference from {winner.variant}: {listed(list(tied))}.", *more])
    ]


def _bound(
    here: Sequence[Point], base: Point | None, winner: Point
) -> tuple[float | None, list[str]]:
    """Share of the best bound's gain that the winner captures: (base - winner) / (base - bound).
    A bound without offload is compared with the best variant without offload."""
    bounds = [p for p in here if p.bound and p.against is not None]
    if not bounds or base is None:
        return None, []
    best = min(bounds, key=_mean_s)
    gain, name = best.against, f"The bound {best.variant}, which knows the future,"
    possible_s = _mean_s(base) - _mean_s(best)
    if gain is None or possible_s <= SAME * _mean_s(base):
        return None, [f"{name} gains almost nothing here either, so little can be gained."]
    alike = [p for p in here if not p.bound and p.offload == best.offload]
    if not alike:
        return None, [f"{name} reaches {times(gain.mean.value)}."]
    captor = min(alike, key=_mean_s)
    share_of_it = (_mean_s(base) - _mean_s(captor)) / possible_s
    but = "" if captor is winner else f", {'with' if best.offload else 'without'} offload"
    reached = f"{name} reaches {times(gain.mean.value)}{but}"
    if share_of_it > 1:
        return None, [f"{reached}, less than {captor.variant}, so it is no bound here."]
    if captor is base:
        return None, [f"{reached}, which is the possible gain."]
    captured = f"{captor.variant} captures {share(share_of_it)} of that gain"
    return share_of_it if captor is winner else None, [f"{reached}; {captured}."]


def _mean_s(point: Point) -> float:
    return point.jct_mean_s.value


def _others(here: Sequence[Point], base: Point | None, winner: Point) -> list[str]:
    rest = sorted(
        (p for p in here if p not in (winner, base) and not p.bound and p.against is not None),
        key=_mean_s,
    )
    rated = [(p.variant, p.against.mean) for p in rest if p.against is not None]
    named = {
        "faster": [r for r in rated if r[1].low > 1 and r[1].value > 1 + SAME],
        "slower": [r for r in rated if r[1].high < 1 and r[1].value < 1 - SAME],
    }
    sentences = []
    if named["faster"]:
        then = "Also faster" if winner is not base else "Faster"
        sentences.append(f"{then} than {_name(base)}: {_rated(named['faster'])}.")
    if named["slower"]:
        sentences.append(f"Slower than {_name(base)}: {_rated(named['slower'])}.")
    even = [r[0] for r in rated if r not in named["faster"] + named["slower"]]
    if even:
        sentences.append(f"Similar to {_name(base)}: {listed(even)}.")
    return sentences


def _name(point: Point | None) -> str:
    return "the baseline" if point is None else point.variant


def _rated(rated: Sequence[tuple[str, Estimate]]) -> str:
    return listed([f"{name} {times(gain.value)}" for name, gain in rated])


def _above(contenders: Sequence[Point], winner: Point, baseline: str) -> list[str]:
    """The result at the highest rate, where the headline is about a lower one."""
    highest = contenders[-1].load
    best = min(_at(contenders, highest), key=_mean_s)
    if winner.saturated or highest == winner.load or best.against is None:
        return []
    return [
        f"At {highest} even the fastest, {best.variant}, is past saturation:"
        f" {times(best.against.mean.value)} the speed of {baseline}."
    ]


def _no_difference(points: Sequence[Point], baseline: str) -> list[str]:
    loads: list[str] = []
    for load in dict.fromkeys(p.load for p in points):
        gains = [p.against.mean.value for p in _at(points, load) if p.against is not None]
        if not gains or any(abs(1 / gain - 1) > SAME for gain in gains):
            break
        loads.append(load)
    if not loads:
        return []
    place = f"At {loads[0]}" if len(loads) == 1 else f"Up to {loads[-1]}"
    found = f"{place} the choice makes little difference: all are within {SAME:.0%} of {baseline}."
    if loads[-1] != points[-1].load:
        return [found]
    return [f"{found} Higher rates, or a smaller machine (--hardware), would separate them."]
