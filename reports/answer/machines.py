"""Compares the answers of a sweep on several machines: which scheduler is fastest on which machine.

In: the answer and the points of each machine. Out: sentences, and the rows of tables.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from reports.answer.capacity_context import MachinePrice
from reports.answer.speed_headline import NEGLIGIBLE
from reports.answer.speed_ups import MIN_FULL_TINT, PER_S
from reports.answer.verdict import Answer
from reports.capacity.estimate import Kind
from reports.loads import AGENTS
from reports.numbers import DASH
from reports.run_folder.machines import Member
from reports.statistics.bootstrap import Estimate, interval
from reports.statistics.capacities import VariantCapacity, some_seeds
from reports.statistics.points import Point
from reports.table import Table, TableCell, TableRow
from servers.basics.phrasing import counted, listed, seconds, times

NO_RESULT = (DASH, "no result")
"""Text and title of a cell."""


@dataclass(frozen=True, slots=True)
class OnMachine:
    member: Member
    answer: Answer
    points: Sequence[Point]
    """Including unstable ones."""
    usd_per_job: float
    """Cost with the fastest variant at the answer's load; NaN if the GPU has no price."""
    baseline: str
    price: MachinePrice

    @property
    def fastest(self) -> str | None:
        """The variant with the highest capacity, or the fastest one, if it is significantly better
        than the baseline; else None."""
        if self.answer.capacities:
            best = self.best_capacity
            return best.variant if best is not None and _sustains_more(best, self.base) else None
        winner = self.answer.winner
        return winner.variant if winner is not None and _gains(winner) else None

    @property
    def is_compared(self) -> bool:
        """Whether the baseline has a result to compare with. "No steady state" and "no sustained
        rate" count as results."""
        answer = self.answer
        if answer.capacities:
            return self.base is not None and self.base.kind is not Kind.OPEN
        winner = answer.winner
        return answer.baseline is not None or (
            winner is not None and winner.baseline_without_steady is not None
        )

    @property
    def base(self) -> VariantCapacity | None:
        """The capacity of the baseline."""
        return next((c for c in self.answer.capacities if c.variant == self.baseline), None)

    @property
    def baseline_fails(self) -> bool:
        """Whether the baseline has no steady state at the rate compared, or sustains no rate."""
        if self.answer.capacities:
            return self.base is not None and self.base.kind is Kind.NEVER
        winner = self.answer.winner
        return winner is not None and winner.baseline_without_steady is not None

    @property
    def best_capacity(self) -> VariantCapacity | None:
        """The highest capacity, or the baseline's if it ties with the highest."""
        answer = self.answer
        names = [self.baseline] if self.baseline in answer.winners else answer.winners[:1]
        return next((each for each in answer.capacities if each.variant in names), None)


def _sustains_more(best: VariantCapacity, base: VariantCapacity | None) -> bool:
    if base is None or base is best or base.kind is Kind.OPEN:
        return False
    return best.ratio is not None or base.kind is Kind.NEVER or best.kind is Kind.ALWAYS


def _gains(point: Point) -> bool:
    if point.baseline_without_steady is not None:
        return True
    gain = point.against
    return gain is not None and gain.mean.differs_from_one and gain.mean.value > 1 + NEGLIGIBLE


def headline(machines: Sequence[OnMachine], baseline: str, noun: str = "scheduler") -> str:
    """State which variant is fastest on which machine, each at the load of its own answer. `noun`
    is the word for a variant."""
    answered = [m for m in machines if m.answer.winners]
    if not answered:
        reasons = {m.answer.headline for m in machines}
        return reasons.pop() if len(reasons) == 1 else "No machine has an answer yet."
    sentences = [_wins(answered, baseline, noun)]
    if failing := [m for m in answered if m.baseline_fails]:
        capacity = failing[0].answer.capacities
        fails = "sustains no rate" if capacity else "has no steady state at the rate compared"
        where = "any of them" if failing == answered else _names(failing)
        sentences.append(f"{baseline} {fails} on {where}.")
    if lacking := [m for m in answered if not m.is_compared]:
        sentences.append(f"{baseline} has no valid result to compare with on {_names(lacking)}.")
    if unanswered := [m for m in machines if m not in answered]:
        sentences.append(f"There is no answer on {_names(unanswered)}.")
    return " ".join(sentences)


def _names(machines: Sequence[OnMachine]) -> str:
    return listed([m.member.label for m in machines])


def _wins(answered: Sequence[OnMachine], baseline: str, noun: str) -> str:
    wins = Counter(m.fastest for m in answered if m.fastest is not None)
    even = sum(m.is_compared and m.fastest is None for m in answered)
    ties = any(m.fastest is not None and len(m.answer.winners) > 1 for m in answered)
    capacity = any(m.answer.capacities for m in answered)
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


def unlike_step_times(profiles: Mapping[str, str]) -> list[str]:
    """Return a caveat if only some step times are analytic. `profiles` has the provenance of the
    profile by machine."""
    analytic = [name for name, kind in profiles.items() if kind == "analytic"]
    if not analytic or len(analytic) == len(profiles):
        return []
    others = list(dict.fromkeys(kind for kind in profiles.values() if kind != "analytic"))
    return [
        f"Step times are analytic (a roofline of published peaks, not a measurement) for "
        f"{listed(analytic)}, and from {listed([f'{kind} profiles' for kind in others])} for the "
        "others: differences between the two groups are partly differences between the profiles."
    ]


def matrix(machines: Sequence[OnMachine]) -> Table:
    """Return the table of the fastest variant by model and hardware."""
    hardware = list(dict.fromkeys(m.member.hardware for m in machines))
    at = {(m.member.model, m.member.hardware): m for m in machines}
    full = _full_tint([m.answer.winner for m in machines if m.answer.winner is not None])
    several = any((m.member.gpus or 1) > 1 for m in machines)
    rows = [
        TableRow(model, [_matrix_cell(at.get((model, gpu)), full, several) for gpu in hardware])
        for model in dict.fromkeys(m.member.model for m in machines)
    ]
    return Table(["Model", *hardware], rows)


def _matrix_cell(machine: OnMachine | None, full: float, several: bool) -> TableCell:
    if machine is None:
        return TableCell(DASH, kind="none", lines=("not in this sweep",))
    winner, best, member = machine.answer.winner, machine.best_capacity, machine.member
    lines = [f"on {member.gpus} x {member.hardware}"] if several and member.gpus else []
    if best is not None:
        name, (kind, tint) = best.variant, _capacity_tint(machine, best.ratio)
        lines += _capacity_lines(machine, best)
    elif winner is not None:
        name, (kind, tint) = winner.variant, _tinted(winner, full)
        lines += _speed_lines(machine, winner)
    else:
        return TableCell(DASH, kind="none", lines=("no result",))
    gain = winner.against if winner is not None and best is None else None
    if winner is not None and gain is not None and machine.answer.baseline and not _gains(winner):
        name = "no significant difference" if gain.mean.has_interval else "not tested"
    else:
        name += _and_ties(machine.answer)
    href = f"{member.folder.name}/report.html"
    return TableCell(name, kind=kind, tint=tint, lines=tuple(lines), href=href)


def _speed_lines(machine: OnMachine, winner: Point) -> Iterator[str]:
    base, gain = machine.answer.baseline, winner.against
    mean = seconds(winner.jct_mean_s.value)
    if gain is not None and base is not None:
        if not _gains(winner):
            yield f"fastest: {winner.variant}"
        yield f"{times(gain.mean.value)} ({interval(gain.mean)})"
        yield f"{mean} instead of {seconds(base.jct_mean_s.value)}"
    else:
        yield mean
        if (lacks := winner.baseline_without_steady) is not None:
            yield f"{machine.baseline} has no steady state{some_seeds(lacks)}"
    yield f"at {winner.load}{', past saturation' if winner.saturated else ''}"
    if not math.isnan(machine.usd_per_job):
        yield f"{machine.usd_per_job:.3g} USD per job"


def _capacity_lines(machine: OnMachine, best: VariantCapacity) -> Iterator[str]:
    value, ratio = best.load, best.ratio
    if value is None:
        yield "every rate that was tried"
        return
    gain = "" if ratio is None else f", {times(ratio.value)} ({interval(ratio)})"
    yield f"{best.text()}{gain}"
    if machine.baseline_fails:
        yield f"{machine.baseline} sustains no {best.ladder.noun}"
    if best.ladder is AGENTS:
        yield f"{value.value / machine.price.gpus:.3g} agents per GPU"
    else:
        yield f"{machine.price.gpus / value.value:.3g} GPUs per job/s"
    usd = machine.price.usd(value.value, best.ladder)
    if not math.isnan(usd):
        yield f"{usd:.3g} {best.ladder.cost}"


def _and_ties(answer: Answer) -> str:
    tied = len(answer.winners) - 1
    return f" and {counted(tied, 'tie')}" if tied > 0 else ""


def _capacity_tint(machine: OnMachine, ratio: Estimate | None) -> tuple[str, int]:
    if machine.fastest is None:
        return "even", 0
    if ratio is None:
        return "faster", 100
    return "faster", min(100, round(100 * math.log(max(ratio.value, 1))))


def by_load(machines: Sequence[OnMachine]) -> Table | None:
    """Return the table of the fastest variant by machine and load, without references; None if
    there is only one load, or if capacities were searched."""
    loads = {p.load: p.amount or 0.0 for m in machines for p in m.points}
    ordered = sorted(loads, key=lambda load: loads[load])
    if len(ordered) < 2 or any(m.answer.capacities for m in machines):
        return None  # Each machine has its own rates, around its capacities.
    full = _full_tint([p for m in machines for load in ordered if (p := _fastest(m, load))])
    rows = [
        TableRow(m.member.label, [_load_cell(m, load, full) for load in ordered]) for m in machines
    ]
    return Table(["Machine", *(load.removesuffix(PER_S) for load in ordered)], rows)


def _fastest(machine: OnMachine, load: str) -> Point | None:
    here = [p for p in machine.points if p.load == load and not p.reference and not p.failed_gates]
    stable = [p for p in here if not p.unstable]
    return min(stable, key=lambda p: p.jct_mean_s.value, default=None)


def _load_cell(machine: OnMachine, load: str, full: float) -> TableCell:
    """Name the fastest variant with its speed-up, or state that there is no significant ratio."""
    point = _fastest(machine, load)
    if point is None:
        unstable = any(p.load == load and p.unstable for p in machine.points)
        text, title = ("unstable", "no variant has a steady state") if unstable else NO_RESULT
        return TableCell(text, kind="none", title=title, hollow=False)
    text, gain = point.variant, None
    title = f"{text}: mean {seconds(point.jct_mean_s.value)}"
    if point.against is not None:
        gain = point.against.mean
        title += f", {times(gain.value)} as fast as {machine.baseline}, {interval(gain)}"
    if (lacks := point.baseline_without_steady) is not None and point.variant != machine.baseline:
        text += f"; {machine.baseline} unstable"
        title += f"; {machine.baseline} has no steady state{some_seeds(lacks)}"
    elif gain is not None and _gains(point):
        text += f" {times(gain.value)}"
    elif gain is not None and not gain.has_interval and gain.value > 1 + NEGLIGIBLE:
        text += f" {times(gain.value)}, not tested"
    elif gain is not None:
        text = "no difference"
    kind, tint = _tinted(point, full)
    return TableCell(text, kind=kind, tint=tint, title=title, hollow=point.saturated)


def _full_tint(points: Sequence[Point]) -> float:
    """Return the logarithm of the speed-up that has the strongest tint."""
    gains = [math.log(p.against.mean.value) for p in points if p.against is not None]
    return max([MIN_FULL_TINT, *gains])


def _tinted(point: Point, full: float) -> tuple[str, int]:
    if point.baseline_without_steady is not None:
        return "faster", 100
    if point.against is None:
        return "base", 0
    tint = round(100 * max(math.log(point.against.mean.value), 0) / full)
    return "faster" if _gains(point) else "even", tint
