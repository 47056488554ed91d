"""Answers which machine sustains most jobs per GPU, and which most per dollar.

In: capacities of several machines for the same workload and SLO. Out: sentences, and the rows of
the table. A machine is represented by its best policy, references excluded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from reports.answer.capacity_rows import KINDS
from reports.answer.machines import unlike_step_times
from reports.capacity.estimate import Kind
from reports.capacity.slo import parse_slo
from reports.compare.across import Across, MachineRun, differing
from reports.numbers import DASH, digits, limits
from reports.statistics.best import winners
from reports.statistics.bootstrap import Estimate, interval
from reports.statistics.capacities import EQUAL_WITHIN, VariantCapacity
from reports.statistics.over_seeds import geometric_mean, paired_ratio
from reports.table import TableCell, TableRow
from servers.basics.phrasing import counted, listed, seconds, times


class Best(NamedTuple):
    """The highest capacity on a machine."""

    label: str
    machine: MachineRun
    capacity: VariantCapacity
    tied: int
    """Other policies that tie with it."""

    @property
    def policy(self) -> str:
        ties = (
            f" ({self.tied} {'other ties' if self.tied == 1 else 'others tie'})"
            if self.tied
            else ""
        )
        return f"{self.capacity.variant}{ties}"

    def by_seed(self, divisor: float) -> dict[int, float]:
        return {seed: value / divisor for seed, value in self.capacity.loads.items()}


def best_of_each(across: Across) -> list[Best]:
    found = []
    for machine in across.machines:
        top = [each for each in winners(machine.capacities) if each.load is not None]
        if top:
            found.append(Best(across.label(machine), machine, top[0], len(top) - 1))
    return found


def headline(across: Across) -> str:
    best, none = best_of_each(across), _sustain_none(across)
    if len(best) == 1 and none:
        only = f"Only {best[0].label} sustains any {_noun(across)}, per GPU {_rate(best[0])}."
        return f"{only} {_no_rate(none, _noun(across))}"
    if len(best) < 2:
        return "Fewer than two of these machines have a capacity: there is nothing to compare."
    most = _most("Per GPU", best, lambda b: b.machine.price.gpus, _rate)
    return f"{most} {_no_rate(none, _noun(across))}" if none else most


def _noun(across: Across) -> str:
    return across.machines[0].ladder.noun


def _sustain_none(across: Across) -> list[str]:
    """Return the machines on which no policy sustains a rate, which is less than any capacity."""
    return [
        across.label(machine)
        for machine in across.machines
        if {each.kind for each in machine.capacities if not each.reference} == {Kind.NEVER}
    ]


def _no_rate(labels: Sequence[str], noun: str) -> str:
    return f"No policy sustains any {noun} on {listed(labels)}."


def findings(across: Across) -> list[str]:
    best = best_of_each(across)
    priced = [each for each in best if not math.isnan(each.machine.price.usd_per_h)]
    sentences = []
    if len(priced) > 1:
        sentences.append(_most("Per dollar", priced, _usd_per_h, _cost))
    return [*sentences, *_same_policy(best, len(across.machines))]


def _usd_per_h(best: Best) -> float:
    return best.machine.price.usd_per_h * best.machine.price.gpus


def _most(
    measure: str,
    best: Sequence[Best],
    divisor: Callable[[Best], float],
    shown: Callable[[Best], str],
) -> str:
    rates = {each.label: geometric_mean(each.by_seed(divisor(each)).values()) for each in best}
    ranked = sorted(best, key=lambda each: -rates[each.label].value)
    first, second = ranked[:2]
    things = first.machine.ladder.things
    ratios = {
        each.label: paired_ratio(first.by_seed(divisor(first)), each.by_seed(divisor(each)))
        for each in ranked[1:]
    }
    tied = [first, *(each for each in ranked[1:] if _ties(ratios[each.label]))]
    if len(tied) > 1:
        return (
            f"{measure}, {listed([each.label for each in tied])} sustain the most {things} and are "
            f"not distinguished with {counted(len(first.capacity.by_seed), 'seed')}: "
            f"{listed([shown(each) for each in tied])}."
        )
    ratio = ratios[second.label]
    more = f"{times(ratio.value)} as many as {second.label} ({interval(ratio)})" if ratio else ""
    return f"{measure}, {first.label} sustains the most {things}: {shown(first)}, {more}."


def _ties(ratio: Estimate | None) -> bool:
    return ratio is None or ratio.value <= 1 + EQUAL_WITHIN or ratio.low <= 1


def _rate(best: Best) -> str:
    value = best.machine.per_gpu(best.capacity)
    return f"{best.machine.ladder.text(value.value if value else math.nan)} with {best.policy}"


def _cost(best: Best) -> str:
    value = best.machine.usd(best.capacity)
    return f"{value.value if value else math.nan:.3g} {best.machine.ladder.cost} with {best.policy}"


def _labels(best: Sequence[Best]) -> str:
    return listed([each.label for each in best])


def _same_policy(best: Sequence[Best], machines: int) -> list[str]:
    """Say whether the best policy is the same on all machines. `machines`: how many there are, with
    those without a capacity."""
    names = {each.capacity.variant for each in best}
    if best and not any(each.tied for each in best):
        if len(names) == 1:
            every = "each of these machines" if len(best) == machines else _labels(best)
            return [f"{names.pop()} has the highest capacity on {every}."]
        words = [f"{each.capacity.variant} on {each.label}" for each in best]
        return [f"The highest capacities: {listed(words)}."]
    tied = [each.label for each in best if each.tied]
    return [f"Several policies tie for the highest capacity on {listed(tied)}."] if tied else []


def caveats(across: Across) -> list[str]:
    machines = across.machines
    profiles = {across.label(m): kind for m in machines if (kind := m.sweep.profile.provenance)}
    return [*unlike_step_times(profiles), *_relative_slo(across), *_seeds(across), *_other(across)]


def _relative_slo(across: Across) -> Iterable[str]:
    slo = parse_slo(across.machines[0].slo)
    if any(limit.unit == "x" for limit in slo.limits):
        idle = [f"{seconds(m.idle_mean_s)} on {across.label(m)}" for m in across.machines]
        yield (
            f"The SLO {slo} is relative to each idle machine, so a faster machine must be faster: "
            f"its mean JCT is {listed(idle)}. An SLO in seconds asks the same of all."
        )


def _seeds(across: Across) -> Iterable[str]:
    if len(across.seeds) == 1:
        yield (
            "One common seed: capacities have no interval, and another draw of arrivals and "
            "programs may change the order. Use --seeds 1..3 or more."
        )
    for label, seeds in across.dropped_seeds.items():
        yield f"Not used, because not all runs have them: seeds {listed(list(map(str, seeds)))} " \
            f"of {label}."  # fmt: skip


def _other(across: Across) -> Iterable[str]:
    different = [name for name, _ in differing(across) if name != "step times"]
    if different:
        yield f"The runs also differ in {listed(different)}; the table of settings has the values."
    unpriced = [across.label(m) for m in across.machines if math.isnan(m.price.usd_per_h)]
    if unpriced:
        yield (
            f"No price is known for {listed(unpriced)}: give one with --price NAME=USD, or "
            "price_usd_per_hour in the file of the GPU."
        )


def rows(across: Across) -> list[tuple[str, list[TableRow]]]:
    """Return the rows of the table by machine, each with the policies from the best on."""
    return [
        (across.label(machine), [_row(machine, each) for each in _ordered(machine.capacities)])
        for machine in across.machines
    ]


def _ordered(capacities: Sequence[VariantCapacity]) -> list[VariantCapacity]:
    return sorted(capacities, key=lambda e: -(e.load.value if e.load else 0.0))


def _row(machine: MachineRun, each: VariantCapacity) -> TableRow:
    wins = each in winners(machine.capacities)
    if each.load is None:
        cells = [KINDS[each.kind], *[DASH] * 5]
    else:
        cells = [
            digits(each.load.value),
            *_number_and_limits(machine.per_gpu(each)),
            *_number_and_limits(machine.usd(each)),
            DASH if each.ratio is None else times(each.ratio.value),
        ]
    return TableRow(each.variant, [TableCell(text, wins) for text in cells], bool(each.reference))


def _number_and_limits(value: Estimate | None) -> tuple[str, str]:
    if value is None:
        return DASH, DASH
    return digits(value.value), limits(value.low, value.high)
