"""Answers which of several machines sustains the most per GPU, and which per dollar.

In: runs with capacities for the same workload and SLO. Out: sentences, and the rows of the table. A
machine is represented by its best policy, references excluded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from reports.answer.capacity_rows import capacity_rows, with_limits
from reports.answer.headline import Contender, Ranking
from reports.answer.members import MemberRun
from reports.capacity.estimate import Kind
from reports.capacity.slo import parse_slo
from reports.numbers import DASH
from reports.statistics.best import winners
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import EQUAL_WITHIN, VariantCapacity
from reports.statistics.over_seeds import geometric_mean, paired_ratio
from reports.table import Table, TableCell, TableRow
from servers.basics.phrasing import counted, listed, seconds
from servers.records.settings import LimitsRecord
from servers.records.sweep import SweepRecord


class Best(NamedTuple):
    """The highest capacity on a machine."""

    run: MemberRun
    capacity: VariantCapacity
    tied: int
    """Other policies that tie with it."""

    @property
    def policy(self) -> str:
        ties = f" ({self.tied} {'other ties' if self.tied == 1 else 'others tie'})"
        return f"{self.capacity.variant}{ties if self.tied else ''}"

    def by_seed(self, divisor: float) -> dict[int, float]:
        return {seed: value / divisor for seed, value in self.capacity.loads.items()}


def most_per_gpu(runs: Sequence[MemberRun]) -> list[str]:
    """Return sentences on the machines with the most jobs per GPU and per dollar; none if fewer
    than two machines are comparable, as after several bursts on one."""
    best = []
    for run in runs:
        top = [each for each in winners(run.capacities) if each.load is not None]
        if top:
            best.append(Best(run, top[0], len(top) - 1))
    kinds = {
        run.label: {each.kind for each in run.capacities if not each.reference} for run in runs
    }
    none = [label for label, found in kinds.items() if found == {Kind.NEVER}]
    if not best or len(best) + len(none) < 2 or runs[0].member.burst is not None:
        return []
    noun = runs[0].ladder.noun
    no_rate = f" No policy sustains any {noun} on {listed(none)}." if none else ""
    if len(best) == 1:
        only = f"Only {best[0].run.label} sustains any {noun}, per GPU {_rate(best[0])}."
        return [f"{only}{no_rate}"]
    most = _most(best, lambda b: b.run.price.gpus, _rate, place="on each GPU")
    sentences = [f"{most}{no_rate}"]
    priced = [each for each in best if not math.isnan(each.run.price.usd_per_h)]
    if len(priced) > 1:
        as_many = f"as many {runs[0].ladder.things} per dollar"
        words = {"has": "needs", "place": "at these prices", "as_many": as_many}
        sentences.append(
            _most(priced, lambda b: b.run.price.usd_per_h * b.run.price.gpus, _cost, **words)
        )
    return sentences


def _most(
    best: Sequence[Best],
    divisor: Callable[[Best], float],
    shown: Callable[[Best], str],
    **words: str,
) -> str:
    rates = {each.run.label: geometric_mean(each.by_seed(divisor(each)).values()) for each in best}
    first, second, *_ = ranked = sorted(best, key=lambda each: -rates[each.run.label].value)
    ratios = {
        each.run.label: paired_ratio(first.by_seed(divisor(first)), each.by_seed(divisor(each)))
        for each in ranked[1:]
    }
    tied = [first, *(each for each in ranked[1:] if _ties(ratios[each.run.label]))]
    next_best = second.run.label if len(tied) == 1 else ""
    return Ranking(
        [
            Contender(
                each.run.label, rates[each.run.label].value, shown(each), ratios.get(next_best)
            )
            for each in tied
        ],
        everyone=len(tied) == len(best),
        baseline=next_best,
        within=0.0,  # Equal numbers may be of different policies.
        tie=f"are not distinguished with {counted(len(first.capacity.by_seed), 'seed')}",
        noun="machine" if len({each.run.member.model for each in best}) == 1 else "run",
        **words,
    ).sentence()


def _ties(ratio: Estimate | None) -> bool:
    return ratio is None or ratio.value <= 1 + EQUAL_WITHIN or ratio.low <= 1


def _rate(best: Best) -> str:
    value = best.run.per_gpu(best.capacity)
    return f"{best.run.ladder.text(value.value if value else math.nan)} with {best.policy}"


def _cost(best: Best) -> str:
    value = best.run.usd(best.capacity)
    return f"{value.value if value else math.nan:.3g} {best.run.ladder.cost} with {best.policy}"


def caveats(runs: Sequence[MemberRun]) -> list[str]:
    if not runs[0].slo or runs[0].member.burst is not None:
        return []
    return [*_relative_slo(runs), *_seeds(runs), *_other(runs)]


def _relative_slo(runs: Sequence[MemberRun]) -> Iterable[str]:
    slo = parse_slo(runs[0].slo)
    if any(limit.unit == "x" for limit in slo.limits):
        idle = [f"{seconds(run.idle_mean_s)} on {run.label}" for run in runs]
        yield (
            f"The SLO {slo} is relative to each idle machine, so a faster one has a stricter "
            f"limit: idle, its mean JCT is {listed(idle)}. An SLO in seconds is the same for all."
        )


def _seeds(runs: Sequence[MemberRun]) -> Iterable[str]:
    dropped = [
        f"{listed([*map(str, run.dropped_seeds)])} on {run.label}"
        for run in runs
        if run.dropped_seeds
    ]
    if not dropped:
        return
    common = [*map(str, sorted(runs[0].seeds))]
    used = f"Only the seeds that all runs have are used: {listed(common)}."
    yield f"{used} Left out: {'; '.join(dropped)}."
    if len(common) == 1:
        yield (
            "One common seed: capacities have no interval, and other arrivals and programs may"
            " change the order. Use --seeds 1..3 or more."
        )


def _other(runs: Sequence[MemberRun]) -> Iterable[str]:
    different = [name for name, _ in differing(runs) if name != "step times"]
    if different:
        yield f"The runs also differ in {listed(different)}; the table of settings has the values."
    unpriced = [run.label for run in runs if math.isnan(run.price.usd_per_h)]
    if unpriced:
        yield (
            f"No price is known for {listed(unpriced)}: give one with --price NAME=USD, or "
            "price_usd_per_hour in the file of the GPU."
        )


def capacities_by_run(runs: Sequence[MemberRun]) -> Table:
    """Return the policies of each run, the highest capacity first."""
    ladder = runs[0].ladder
    unit = ladder.unit[:1].upper() + ladder.unit[1:]
    numbers = (unit, "Ratio", f"{unit} per GPU", ladder.cost)
    heads = ["Policy", *(head for number in numbers for head in (number, "95% CI"))]
    rows = [_row(run, row) for run in runs for row in capacity_rows(run.answer)]
    return Table(heads, rows)


def _row(run: MemberRun, row: TableRow) -> TableRow:
    each = next(each for each in run.capacities if each.variant == row.name)
    per_gpu = map(TableCell, (*with_limits(run.per_gpu(each)), *with_limits(run.usd(each))))
    wins = row.cells[0].best
    cells = [cell._replace(best=wins) for cell in (*row.cells, *per_gpu)]
    return row._replace(cells=cells, group=run.label)


def differing(runs: Sequence[MemberRun]) -> list[tuple[str, list[str]]]:
    """Return settings that differ though they are no axis and do not decide the machine: name, and
    the value of each machine."""
    rows = [(title, [value(run.sweep) for run in runs]) for title, value in SETTINGS.items()]
    return [(title, values) for title, values in rows if len(set(values)) > 1]


def _limit(name: str) -> Callable[[SweepRecord], str]:
    return lambda sweep: str(getattr(sweep.limits, name) or DASH)


SETTINGS: Mapping[str, Callable[[SweepRecord], str]] = {
    "step times": lambda sweep: str(sweep.profile.provenance or DASH),
    **{name.replace("_", " "): _limit(name) for name in LimitsRecord.__struct_fields__},
    "layout": lambda sweep: str(sweep.layout or "tp"),
    "KV cache": lambda sweep: str(sweep.kv_cache_dtype or "auto"),
    "CPU time of steps": lambda sweep: str(sweep.scheduling or DASH),
    "policies": lambda sweep: listed([v.name for v in sweep.variants], at_most=30),
    "Turnstile": lambda sweep: str(sweep.turnstile_version or DASH),
    "code": lambda sweep: str(sweep.code_sha256 or DASH)[:12],
}
"""Settings that two machines may differ in, in words."""
