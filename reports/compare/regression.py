"""Tests whether jobs are significantly slower in one run than in another with the same settings,
machine by machine if the runs are sweeps on several.

In: two `Side`s. Out: a verdict with a `Change` for each policy, load and metric.
docs/howto/compare.md defines the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from reports.answer.provenance import heading
from reports.compare import outcomes
from reports.compare.baseline import NO_JCTS, Capacities, Place, Side, read_side, typed
from reports.compare.settings import allowed_differences, refuse_different
from reports.compare.verdict import CAPACITY, Change, Outcome, Verdict
from reports.run_folder.lines import RERUN
from reports.run_folder.members import has_members, labels, read_members
from reports.statistics.bootstrap import CONFIDENCE, Estimate
from reports.statistics.over_seeds import geometric_mean, paired_ratio
from reports.statistics.points import compare_jcts
from servers.basics.errors import NotComparable
from servers.basics.phrasing import listed

METRICS = {"jct.mean": None, "jct.p50": 50, "jct.p90": 90, "jct.p95": 95, "jct.p99": 99}
"""Percentiles by the name of the metric. None is the mean."""


def compare_sides(
    base: Side,
    new: Side,
    metrics: Sequence[str],
    max_regression: float,
    confidence: float = CONFIDENCE,
    allowed: Collection[str] = (),
) -> Verdict:
    """Compare the policies, loads and seeds that both sides have. `max_regression` is relative:
    0.05 allows 5%. `allowed` names settings that may differ.

    Raises NotComparable.
    """
    refuse_different(base, new, allowed)
    different = outcomes.different_cells(base, new)
    changes = [
        *_capacity_changes(base, new, max_regression, confidence),
        *_changes(base, new, metrics, max_regression, confidence, different),
    ]
    if not changes:
        raise NotComparable(_nothing_in_common(base, new))
    return Verdict(
        tuple(
            sorted(changes, key=lambda c: (not c.is_collapse, not c.is_capacity, c.load, c.variant))
        ),
        tuple(_unpaired(base, new)),
        invalid_cells(base, new),
        tuple(heading(typed(base.settings))),
        new.valid,
        tuple(
            f"{place.variant} at {place.load}, seed {place.seed}: {what}"
            for place, what in different.items()
        ),
        tuple(outcomes.without_steady_state(base, new)),
        allowed_differences(base, new, allowed),
    )


def invalid_cells(base: Side, new: Side) -> tuple[str, ...]:
    """Return the invalid cells of the new run, and damaged ones of both."""
    damaged = {cell: why for cell, why in base.invalid.items() if why.endswith(RERUN)}
    return tuple(f"{cell}: {why}" for cell, why in sorted((damaged | new.invalid).items()))


def _nothing_in_common(base: Side, new: Side) -> str:
    for side in (base, new):
        if not side.places:
            if side.settings.get("scenario"):
                return f"{side.name}: {NO_JCTS}"
            return f"{side.name}: no job finished, so there is nothing to compare"
    for index, what in enumerate(("policy", "load", "seed")):
        one, other = (
            list(dict.fromkeys(str(place[index]) for place in sorted(side.places)))
            for side in (base, new)
        )
        if not set(one) & set(other):
            shown = outcomes.loads_in_words if what == "load" else listed
            return (
                f"{base.name} and {new.name} have no {what} in common: {shown(one)}, and "
                f"{shown(other)}; run one of them again like the other"
            )
    if not base.places & new.places:
        return f"{base.name} and {new.name} have no policy, load and seed in common"
    if not set(base.jobs["job_id"]) & set(new.jobs["job_id"]):
        return (
            f"{base.name} and {new.name} have no job in common: their workloads differ; "
            "run one of them again with the other's --traces"
        )
    return (
        f"{base.name} and {new.name}: no job finished in both under the same policy, load and seed"
    )


def _changes(
    base: Side,
    new: Side,
    metrics: Sequence[str],
    max_regression: float,
    confidence: float,
    different: Collection[Place],
) -> Iterable[Change]:
    """Yield the changes of each policy and load: of the seeds that have a steady state, and of the
    JCTs with the seeds that have one in both runs."""
    base_jobs, new_jobs = _by_point(base), _by_point(new)
    for key, seeds in outcomes.common_seeds(base, new).items():
        if (steady := outcomes.steadiness(*key, seeds, base, new, different)) is not None:
            yield steady
        both = [
            s for s in seeds if not {Place(*key, s)} & (base.unstable.keys() | new.unstable.keys())
        ]
        if not both:
            continue
        after_jobs, before_jobs = (
            jobs[key][jobs[key]["seed"].isin(both)] for jobs in (new_jobs, base_jobs)
        )
        percentiles = [METRICS[metric] for metric in metrics]
        size, compared = compare_jcts(
            after_jobs, before_jobs, percentiles, steady=base.steady, confidence=confidence
        )
        identical = not any(Place(*key, seed) in different for seed in both)
        for metric, (after, before, relative) in zip(metrics, compared, strict=bool(size)):
            change = Estimate(relative.value - 1, relative.low - 1, relative.high - 1)
            outcome: Outcome = "identical" if identical else "noise"
            if not identical and size >= MIN_PROGRAMS:
                outcome = _direction(change, change.value, max_regression)
            note = outcomes.seeds_in_words(both, seeds)
            yield Change(*key, metric, size, before, after, change, outcome, note)


def _capacity_changes(
    base: Side, new: Side, max_regression: float, confidence: float
) -> Iterable[Change]:
    one, other = base.capacities, new.capacities
    if one is None or other is None or one.unit != other.unit:
        return
    for variant in {**one.jobs_per_s, **one.bounds}:
        bounded = outcomes.sustained(variant, one, other, max_regression)
        found = _capacity_change(variant, one, other, max_regression, confidence)
        yield from filter(None, [bounded, found])


def _capacity_change(
    variant: str, base: Capacities, new: Capacities, max_regression: float, confidence: float
) -> Change | None:
    """Compare the capacities of the seeds for which both runs found one."""
    old_per_s, new_per_s = (side.jobs_per_s.get(variant, {}) for side in (base, new))
    seeds = sorted(old_per_s.keys() & new_per_s.keys())
    relative = paired_ratio(new_per_s, old_per_s, confidence)
    if relative is None:
        return None
    change = Estimate(relative.value - 1, relative.low - 1, relative.high - 1)
    before, after = (
        geometric_mean(per_s[seed] for seed in seeds).value for per_s in (old_per_s, new_per_s)
    )
    if all(old_per_s[seed] == new_per_s[seed] for seed in seeds):
        outcome: Outcome = "identical"
    else:
        outcome = _direction(change, -change.value, max_regression)
    of_either = [
        side.jobs_per_s.get(variant, {}) | side.bounds.get(variant, {}) for side in (base, new)
    ]
    note = outcomes.seeds_in_words(seeds, sorted(of_either[0].keys() & of_either[1].keys()))
    return Change(variant, CAPACITY, base.unit, len(seeds), before, after, change, outcome, note)


def _unpaired(base: Side, new: Side) -> Iterable[str]:
    """Yield what only one side has. Rates of a policy are one phrase, since searches for
    capacities try many."""
    for mine, other in ((base, new), (new, base)):
        others = {place[:2] for place in other.places}
        policies = {variant for variant, _ in others}
        only: dict[str, list[str]] = {}
        for variant, load in sorted({place[:2] for place in mine.places} - others):
            only.setdefault(variant, []).append(load)
        for variant, loads in only.items():
            at = f" at {outcomes.loads_in_words(loads)}" if variant in policies else ""
            yield f"{variant}{at} ({mine.name})"
        seeds = {p.seed for p in mine.places} - {p.seed for p in other.places}
        if seeds:
            yield f"{listed([f'seed {seed}' for seed in sorted(seeds)])} ({mine.name})"


def _by_point(side: Side) -> dict[tuple[str, str], pd.DataFrame]:
    groups = side.jobs.groupby(["variant", "load"])
    return {(str(variant), str(load)): jobs for (variant, load), jobs in groups}


def _direction(change: Estimate, slowdown: float, max_regression: float) -> Outcome:
    if not change.has_interval:
        return "unknown"
    if change.low <= 0 <= change.high:
        return "noise"
    if slowdown > max_regression:
        return "regression"
    return "slower" if slowdown > 0 else "faster"


MIN_PROGRAMS = 5
"""With fewer programs, an interval is too unreliable to report a difference."""


Compare = Callable[[Side, Side], Verdict]


def compare_paths(base: Path, new: Path, compare: Compare) -> Verdict:
    """Compare two runs or baseline files, or two sweeps on several machines. A verdict says if they
    cannot be compared. Raises InvalidInput or InvalidRunFolder."""
    if not has_members(base) or not has_members(new):
        return _compared(base, new, compare)
    before, after = read_members(base), read_members(new)
    names = labels([*before, *after])
    old = dict(zip(names, before, strict=False))
    now = dict(zip(names[len(before) :], after, strict=True))
    verdicts = {
        machine: _compared(old[machine].folder, now[machine].folder, compare)
        for machine in old
        if machine in now
    }
    if not verdicts:
        refused = (
            f"{base} and {new}: have no machine in common; {base} has {listed(list(old))}, "
            f"and {new} {listed(list(now))}"
        )
        return Verdict(refused=refused)

    changes = [
        replace(change, load=f"{change.load}, {machine}")
        for machine, verdict in verdicts.items()
        for change in verdict.changes
    ]

    def on_each(lines: Callable[[Verdict], Iterable[str]], form: str) -> tuple[str, ...]:
        return tuple(form.format(e, m) for m, verdict in verdicts.items() for e in lines(verdict))

    return Verdict(
        tuple(sorted(changes, key=lambda change: not change.is_collapse)),
        (*on_each(lambda v: v.unpaired, "{0}, {1}"), *sorted(old.keys() ^ now.keys())),
        on_each(lambda v: v.invalid, "{1}: {0}"),
        tuple(words[0] for words in _contexts(verdicts.values()) if len(words) == 1),
        on_each(lambda v: v.valid, "{1}: {0}"),
        on_each(lambda v: v.different, "{0}, {1}"),
        on_each(lambda v: v.unstable, "{0}, {1}"),
        on_each(lambda v: v.allowed, "{0}, {1}"),
        "; ".join(verdict.refused for verdict in verdicts.values() if verdict.refused),
    )


def _compared(base: Path, new: Path, compare: Compare) -> Verdict:
    """Compare two sides. If they are refused, the verdict still has the checks of the cells."""
    one, other = read_side(base), read_side(new)
    try:
        return compare(one, other)
    except NotComparable as error:
        return Verdict(invalid=invalid_cells(one, other), valid=other.valid, refused=str(error))


def _contexts(verdicts: Iterable[Verdict]) -> Iterable[list[str]]:
    """Yield the different words at each place of the contexts."""
    for words in zip(*(verdict.context for verdict in verdicts), strict=False):
        yield list(dict.fromkeys(words))
