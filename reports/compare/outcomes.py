"""Compares what has no number: cells without a steady state, and capacities that were not found.

In: two `Side`s. Out: a `Change` for each policy and load with a cell without a steady state, one
for each policy with such a capacity, and the cells whose results are not exactly equal. A seed
without a steady state is worse than any JCT, and a capacity of none is less than any rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from reports.capacity.estimate import Kind
from reports.compare import verdict
from reports.compare.baseline import Bounds, Capacities, Place, Side, Unstable
from reports.compare.verdict import Change, Outcome
from reports.statistics.bootstrap import Estimate
from servers.basics.phrasing import counted, listed

LOST, GAINED, EQUAL = math.inf, -math.inf, math.nan
"""Changes of a JCT that becomes infinite, or was."""


def common_seeds(base: Side, new: Side) -> dict[tuple[str, str], list[int]]:
    """Return the seeds of both runs by policy and load, in order."""
    found: dict[tuple[str, str], list[int]] = {}
    for variant, load, seed in sorted(base.places & new.places):
        found.setdefault((variant, load), []).append(seed)
    return found


def steadiness(
    variant: str, load: str, seeds: Sequence[int], base: Side, new: Side, different: Iterable[Place]
) -> Change | None:
    """Compare which of the seeds of both runs have a steady state; None if all have one in both.

    A single seed that lost it is a regression, whatever the others did: pairs are per seed.
    """
    places = [Place(variant, load, seed) for seed in seeds]
    before, after = (
        {place.seed for place in places if place not in side.unstable} for side in (base, new)
    )
    if len(before) == len(after) == len(seeds):
        return None
    lost, gained = sorted(before - after), sorted(after - before)
    either = sorted(set(seeds) - before - after)
    outcome: Outcome = "regression" if lost else "faster" if gained else "undecided"
    if outcome == "undecided" and not {Place(variant, load, seed) for seed in either} & set(
        different
    ):
        outcome = "identical"
    value = LOST if lost else GAINED if gained else EQUAL
    return Change(
        variant,
        load,
        verdict.STEADY,
        len(seeds),
        _steady_seeds(len(before), len(seeds)),
        _steady_seeds(len(after), len(seeds)),
        Estimate(value, math.nan, math.nan),
        outcome,
        seeds_in_words(lost or gained or either, seeds),
    )


def _steady_seeds(steady: int, seeds: int) -> str:
    if steady == seeds:
        return "stable"
    return f"{steady} of {seeds} seeds stable" if steady else verdict.NOT_STEADY


def seeds_in_words(some: Sequence[int], seeds: Sequence[int]) -> str:
    """Return `seed 1`, or `seeds 1 and 2`; nothing if they are all of `seeds`."""
    if len(some) == len(seeds):
        return ""
    return f"{'seed' if len(some) == 1 else 'seeds'} {listed([str(seed) for seed in some])}"


def without_steady_state(base: Side, new: Side) -> Iterable[str]:
    """Yield what has no steady state in either run. Rates of a policy are one phrase, if it lacks
    one there with the same seeds."""
    by_policy: dict[tuple[str, str], list[str]] = {}
    for (variant, load), seeds in common_seeds(base, new).items():
        neither = [
            seed
            for seed in seeds
            if Place(variant, load, seed) in base.unstable.keys() & new.unstable.keys()
        ]
        if neither:
            by_policy.setdefault((variant, seeds_in_words(neither, seeds)), []).append(load)
    for (variant, some), loads in by_policy.items():
        yield f"{variant} at {loads_in_words(loads)}{f' with {some}' if some else ''}"


def loads_in_words(loads: Sequence[str]) -> str:
    ordered = sorted(loads, key=_number)
    numbers = [load.partition(" ")[0] for load in ordered]
    unit = ordered[-1].partition(" ")[2] if ordered else ""
    return f"{listed(numbers, at_most=4)}{f' {unit}' if unit else ''}"


def _number(load: str) -> float:
    """Return the number of a load, by which loads are in order; infinity if it has none."""
    number = load.partition(" ")[0]
    return float(number) if number[:1].isdigit() else math.inf


def different_cells(base: Side, new: Side) -> dict[Place, str]:
    """Return the cells of both runs whose results are not exactly equal, and what differs."""
    jobs = [_jct_by_place(side.jobs) for side in (base, new)]
    found: dict[Place, str] = {}
    for place in sorted(base.places & new.places):
        before, after = base.unstable.get(place), new.unstable.get(place)
        if before is None and after is None:
            what = _different_jct(*(by_place[place] for by_place in jobs))
        elif before is None or after is None:
            lost = before is None
            what = f"{'stable' if lost else 'unstable'} in BASE, "
            what += f"{'unstable' if lost else 'stable'} in NEW"
        else:
            what = _different_ends(before, after)
        if what:
            found[place] = what
    return found


def _jct_by_place(jobs: pd.DataFrame) -> dict[Place, pd.Series[float]]:
    return {
        Place(str(variant), str(load), int(str(seed))): mine.set_index("job_id")[
            "jct_s"
        ].sort_index()
        for (variant, load, seed), mine in jobs.groupby(["variant", "load", "seed"])
    }


def _different_jct(base: pd.Series[float], new: pd.Series[float]) -> str:
    if not base.index.equals(new.index):
        only = len(base.index.symmetric_difference(new.index))
        return f"{counted(only, 'job')} in one run only"
    if count := int(np.count_nonzero(base.to_numpy() != new.to_numpy())):
        return f"JCTs of {count:,} of {counted(len(base), 'job')}"
    return ""


def _different_ends(base: Unstable, new: Unstable) -> str:
    before, after = base.finished_programs, new.finished_programs
    if before != after:
        return f"ended with {before:,} and {counted(after, 'finished program')}"
    if base.reason != new.reason:
        return f"{verdict.NOT_STEADY}: {base.reason}, and then {new.reason}"
    one, other = (pd.Series(each.jct_s, dtype=float).sort_index() for each in (base, new))
    return _different_jct(one, other)


def sustained(variant: str, base: Capacities, new: Capacities, limit: float) -> Change | None:
    """Compare the capacities of the seeds for which one of the runs has no number; None if there
    are none. One seed that sustains less is a regression; `limit` is relative."""
    seeds = sorted(_seeds(variant, base) & _seeds(variant, new))
    numbers = base.jobs_per_s.get(variant, {}).keys() & new.jobs_per_s.get(variant, {}).keys()
    some = [seed for seed in seeds if seed not in numbers]
    if not some:
        return None
    outcome: Outcome
    pairs = [(_range(variant, seed, base), _range(variant, seed, new)) for seed in some]
    # The least that each seed lost or gained, as new ÷ base.
    lost = [after[1] / before[0] for before, after in pairs if after[1] < before[0] * (1 - limit)]
    gained = [after for before, after in pairs if after[0] > before[1]]
    same = all(_known(variant, s, base) == _known(variant, s, new) for s in some)
    if lost:
        outcome, value = "regression", min(lost) - 1 if min(lost) else -math.inf
    elif gained:
        outcome, value = "faster", math.inf
    else:
        outcome, value = "identical" if same else "undecided", EQUAL
    return Change(
        variant,
        verdict.CAPACITY,
        verdict.SUSTAINED,
        len(some),
        _in_words([_known(variant, seed, base) for seed in some], base.unit),
        _in_words([_known(variant, seed, new) for seed in some], new.unit),
        Estimate(value, math.nan, math.nan),
        outcome,
        seeds_in_words(some, seeds),
    )


def _seeds(variant: str, side: Capacities) -> set[int]:
    return {*side.jobs_per_s.get(variant, ()), *side.bounds.get(variant, ())}


def _known(variant: str, seed: int, side: Capacities) -> float | Bounds:
    bounds = side.bounds.get(variant, {}).get(seed)
    return side.jobs_per_s[variant][seed] if bounds is None else bounds


def _range(variant: str, seed: int, side: Capacities) -> tuple[float, float]:
    known = _known(variant, seed, side)
    if isinstance(known, float):
        return known, known
    if known.kind is Kind.NEVER:
        return 0.0, 0.0
    return known.sustained or 0.0, known.not_sustained or math.inf


def _in_words(known: Sequence[float | Bounds], unit: str) -> str:
    return listed(list(dict.fromkeys(_one_in_words(each, unit) for each in known)), at_most=3)


def _one_in_words(known: float | Bounds, unit: str) -> str:
    if isinstance(known, float):
        return f"{known:.3g} {unit}"
    if known.kind is Kind.NEVER:
        return verdict.NONE_SUSTAINED
    if known.kind is Kind.ALWAYS:
        return f"above {known.sustained or 0.0:.3g} {unit}"
    return "search not finished"
