"""Compares runs that differ in the machine, the model or the burst: which scheduler is best where,
and which machine sustains the most per GPU and per dollar.

In: the answer of each run. Out: sentences, and the rows of a table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reports.answer.capacity_context import MachinePrice, price_of
from reports.answer.headline import NEGLIGIBLE
from reports.answer.report import Report
from reports.answer.speed_ups import MIN_FULL_TINT, PER_S
from reports.answer.verdict import Answer
from reports.capacity.estimate import Kind
from reports.loads import Ladder, ladder_of
from reports.run_folder.members import Member, labels
from reports.statistics.bootstrap import Estimate, interval
from reports.statistics.capacities import VariantCapacity, some_seeds
from reports.statistics.points import Point
from reports.table import Table, TableCell, TableRow
from servers.basics.phrasing import counted, gpus_in_words, listed, seconds, times
from servers.records.sweep import SweepRecord


@dataclass(frozen=True, slots=True)
class MemberRun:
    """One of the runs that are compared."""

    member: Member
    label: str
    """What distinguishes the run from the others."""
    sweep: SweepRecord
    answer: Answer
    points: Sequence[Point]
    """Including unstable ones."""
    price: MachinePrice
    slo: str = ""
    idle_mean_s: float = math.nan
    """Mean JCT on the idle machine; NaN, like an empty SLO, without capacities."""
    dropped_seeds: Sequence[int] = field(default=())
    """Seeds of the capacities that other runs lack, and that are not used."""

    @property
    def baseline(self) -> str:
        return self.sweep.baseline

    @property
    def capacities(self) -> Sequence[VariantCapacity]:
        return self.answer.capacities

    @property
    def machine(self) -> str:
        return gpus_in_words(self.sweep.hardware or "this machine", self.sweep.gpus)

    @property
    def seeds(self) -> set[int]:
        return set().union(*(each.by_seed for each in self.capacities))

    @property
    def ladder(self) -> Ladder:
        return ladder_of(self.sweep.arrivals)

    def per_gpu(self, each: VariantCapacity) -> Estimate | None:
        value, gpus = each.load, self.price.gpus
        if value is None:
            return None
        return Estimate(value.value / gpus, value.low / gpus, value.high / gpus)

    def usd(self, each: VariantCapacity) -> Estimate | None:
        """Return the cost at capacity; None if the hardware has no price."""
        value = each.load
        if value is None or math.isnan(self.price.usd_per_h):
            return None
        return Estimate(
            *(self.price.usd(per_s, self.ladder) for per_s in (value.value, value.high, value.low))
        )

    @property
    def fastest(self) -> str | None:
        """The variant with the highest capacity, or the fastest one, if it is significantly better
        than the baseline; else None."""
        answer = self.answer
        if answer.capacities:
            best = next((c for c in answer.capacities if c.variant in answer.winners[:1]), None)
            if best is None or self.baseline in answer.winners:
                return None
            return best.variant if _sustains_more(best, self.base) else None
        return answer.winner.variant if answer.winner and _gains(answer.winner) else None

    @property
    def is_compared(self) -> bool:
        """Whether the baseline has a result to compare with. "No steady state" and "no sustained
        rate" count as results."""
        answer = self.answer
        if answer.capacities:
            return self.base is not None and self.base.kind is not Kind.OPEN
        return answer.baseline is not None or self.baseline_fails

    @property
    def base(self) -> VariantCapacity | None:
        return next((c for c in self.answer.capacities if c.variant == self.baseline), None)

    @property
    def baseline_fails(self) -> bool:
        """Whether the baseline has no steady state at the rate compared, or sustains no rate."""
        if self.answer.capacities:
            return self.base is not None and self.base.kind is Kind.NEVER
        winner = self.answer.winner
        return winner is not None and winner.baseline_without_steady is not None


def member_runs(reports: Sequence[tuple[Member, Report]]) -> list[MemberRun]:
    names = labels([member for member, _ in reports])
    return [
        MemberRun(
            *(member, name, report.run.sweep, report.result, report.shown_points),
            price_of(report.run.sweep),
            *(() if report.search is None else (str(report.search.slo), report.search.idle_mean_s)),
        )
        for name, (member, report) in zip(names, reports, strict=True)
    ]


def _sustains_more(best: VariantCapacity, base: VariantCapacity | None) -> bool:
    if base is None or base.kind is Kind.OPEN:
        return False
    return best.ratio is not None or base.kind is Kind.NEVER or best.kind is Kind.ALWAYS


def _gains(point: Point) -> bool:
    if point.baseline_without_steady is not None:
        return True
    gain = point.against
    return gain is not None and gain.mean.differs_from_one and gain.mean.value > 1 + NEGLIGIBLE


def headline(runs: Sequence[MemberRun], noun: str = "scheduler") -> str:
    """State which variant is best in which run, each at the load of its own answer. `noun` is the
    word for a variant."""
    answered, baseline = [run for run in runs if run.answer.winners], runs[0].baseline
    if not answered:
        reasons = {run.answer.headline for run in runs}
        each = (f"{run.label}: {run.answer.headline}" for run in runs)
        return reasons.pop() if len(reasons) == 1 else " ".join(each)
    sentences = [_wins(answered, baseline, noun)]
    if failing := [run for run in answered if run.baseline_fails]:
        fails = "has no steady state at the rate compared"
        if failing[0].capacities:
            fails = f"sustains no {failing[0].ladder.noun}"
        where = "any of them" if failing == answered else _names(failing)
        sentences.append(f"{baseline} {fails} on {where}.")
    if lacking := [run for run in answered if not run.is_compared]:
        sentences.append(f"{baseline} has no valid result to compare with on {_names(lacking)}.")
    if unanswered := [run for run in runs if run not in answered]:
        sentences.append(f"There is no answer on {_names(unanswered)}.")
    return " ".join(sentences)


def _names(runs: Sequence[MemberRun]) -> str:
    return listed([run.label for run in runs])


def _wins(answered: Sequence[MemberRun], baseline: str, noun: str) -> str:
    wins = Counter(run.fastest for run in answered if run.fastest is not None)
    even = sum(run.is_compared and run.fastest is None for run in answered)
    ties = any(run.fastest is not None and len(run.answer.winners) > 1 for run in answered)
    capacity = any(run.capacities for run in answered)
    better, best = ("better", "best") if capacity else ("faster", "fastest")
    if not wins:
        return f"No {noun} is significantly {better} than {baseline} on any of these machines."
    count = len(answered)
    if len(wins) == 1 and wins.total() == count:
        every = f"all {count} machines" if count > 2 else "both machines"
        tie = f", or ties with the {best}," if ties else ""
        return f"{next(iter(wins))} is {best}{tie} on {every if count > 1 else _names(answered)}."
    fastest = [f"{name} on {number}" for name, number in wins.most_common()]
    sentence = f"{best.capitalize()} {noun} on {count} machines: {listed(fastest)}"
    if even:
        return f"{sentence}; on {even} none is significantly {better} than {baseline}."
    return f"{sentence}."


def unlike_step_times(runs: Iterable[MemberRun]) -> list[str]:
    """Return a caveat if only some step times are analytic."""
    profiles = {run.label: kind for run in runs if (kind := run.sweep.profile.provenance)}
    analytic = [name for name, kind in profiles.items() if kind == "analytic"]
    if not analytic or len(analytic) == len(profiles):
        return []
    others = list(dict.fromkeys(kind for kind in profiles.values() if kind != "analytic"))
    return [
        f"Step times are analytic (a roofline of published peaks, not a measurement) for "
        f"{listed(analytic)}, and from {listed([f'{kind} profiles' for kind in others])} for the "
        "others: differences between the two groups are partly differences between the profiles."
    ]


def by_load(runs: Sequence[MemberRun]) -> Table:
    """Return the table of the fastest variant by run and load, without references."""
    loads = {p.load: p.amount or 0.0 for run in runs for p in run.points}
    ordered = sorted(loads, key=lambda load: loads[load])
    fastest = {(run.label, load): _fastest(run, load) for run in runs for load in ordered}
    gains = [math.log(p.against.mean.value) for p in fastest.values() if p and p.against]
    full = max([MIN_FULL_TINT, *gains])
    rows = [
        TableRow(run.label, [_cell(run, load, fastest[run.label, load], full) for load in ordered])
        for run in runs
    ]
    return Table(["Machine", *(load.removesuffix(PER_S) for load in ordered)], rows)


def _fastest(run: MemberRun, load: str) -> Point | None:
    here = [p for p in run.points if p.load == load and not p.reference and not p.failed_gates]
    stable = [p for p in here if not p.unstable]
    return min(stable, key=lambda p: p.jct_mean_s.value, default=None)


def _cell(run: MemberRun, load: str, point: Point | None, full: float) -> TableCell:
    """Name the fastest variant with its speed-up, or state that there is no significant ratio."""
    if point is None:
        if any(p.load == load and p.unstable for p in run.points):
            why = "no variant has a steady state"
            return TableCell("unstable", kind="none", title=why, hollow=False)
        return TableCell("–", kind="none", title="no result", hollow=False)
    text, kind, tint = point.variant, "base", 0
    title = f"{text}: mean {seconds(point.jct_mean_s.value)}"
    if (lacks := point.baseline_without_steady) is not None and point.variant != run.baseline:
        text, kind, tint = f"{text}; {run.baseline} unstable", "faster", 100
        title += f"; {run.baseline} has no steady state{some_seeds(lacks)}"
    elif point.against is not None:
        gain = point.against.mean
        title += f", {times(gain.value)} as fast as {run.baseline}, {interval(gain)}"
        kind = "faster" if _gains(point) else "even"
        tint = round(100 * max(math.log(gain.value), 0) / full)
        if _gains(point):
            text += f" {times(gain.value)}"
        elif not gain.has_interval and gain.value > 1 + NEGLIGIBLE:
            text += f" {times(gain.value)}, not tested"
        else:
            text = "no difference"
    return TableCell(text, kind=kind, tint=tint, title=title, hollow=point.saturated)


Capacities = Mapping[int, VariantCapacity | None]
"""Of one variant, by burst in ascending order; None for a burst without a valid result."""


def after_bursts(runs: Sequence[MemberRun]) -> str:
    """State which schedulers sustain most after which burst, and from how large a burst each
    recovers at the rates that the user gave."""
    by_winners: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        by_winners.setdefault(tuple(run.answer.winners), []).append(run.label)
    if list(by_winners) == [()]:
        return "No scheduler sustains any rate that was tried."
    own = by_burst(runs)
    rates = [rate for rate in runs[0].sweep.jps if rate is not None]
    each_best = [f"{listed(best) or 'none'} ({listed(of)})" for best, of in by_winners.items()]
    highest = f"The highest capacity: {'; '.join(each_best)}."
    if len(by_winners) == 1:
        highest = f"The highest capacity, whatever the burst: {listed(next(iter(by_winners)))}."
    return " ".join([highest, *(recoveries(own, rate) for rate in rates)])


def by_burst(runs: Sequence[MemberRun]) -> dict[str, Capacities]:
    """Return the capacities of each variant, in the order of the sweep."""
    bursts = {run.member.burst or 0: {c.variant: c for c in run.capacities} for run in runs}
    names = dict.fromkeys(name for own in bursts.values() for name in own)
    return {name: {n: bursts[n].get(name) for n in sorted(bursts)} for name in names}


def recoveries(capacities: Mapping[str, Capacities], rate: float) -> str:
    """Say how large a burst each scheduler recovers from at a rate."""
    kinds: dict[int, list[str]] = {}
    for name, own in capacities.items():
        most = recovered(own, rate)
        kinds.setdefault(-1 if most is None else most, []).append(name)
    each = [f"{_meets(most)} with {listed(kinds[most])}" for most in sorted(kinds, reverse=True)]
    return f"{rate:g} jobs/s are sustained with every seed {'; '.join(each)}."


def _meets(largest: int) -> str:
    if largest < 1:
        return "after none of these bursts" if largest else "without a burst only"
    return f"after bursts of up to {counted(largest, 'job')}"


def recovered(own: Capacities, rate: float) -> int | None:
    """Return the largest burst up to which the rate is sustained with all seeds, also after all
    smaller ones."""
    largest = None
    for burst, capacity in own.items():
        if capacity is None or not capacity.sustained_at(rate).is_all:
            break
        largest = burst
    return largest
