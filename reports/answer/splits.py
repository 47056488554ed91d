"""Compares prefill/decode splits with each other, if a sweep has several (`--disaggregate`).

In: points or capacities, and `sweep.json`. Out: a sentence per split, each with its best variant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from reports.capacity.estimate import Kind
from reports.statistics.bootstrap import Estimate, interval
from reports.statistics.capacities import EQUAL_WITHIN, VariantCapacity, capacity_ratio
from reports.statistics.points import Comparison, Point
from servers.basics.phrasing import seconds, times
from servers.records.sweep import SweepRecord

NONE = "none"
BOTH = "engines that both prefill and decode"
"""The phrase for engines that are not split."""


def splits_of(sweep: SweepRecord) -> dict[str, str]:
    """Return the split of each variant except references; empty unless there are several splits."""
    of = {
        v.name: v.disaggregate.name if v.disaggregate else NONE
        for v in sweep.variants
        if not v.reference
    }
    return of if len(set(of.values())) > 1 else {}


def is_only_axis(splits: Mapping[str, str]) -> bool:
    """Return whether the variants differ only in their split."""
    return bool(splits) and len(splits) == len(set(splits.values()))


def splits_by_capacity(
    capacities: Sequence[VariantCapacity], splits: Mapping[str, str], baseline: str, machine: str
) -> list[str]:
    """Compare the highest capacity of each split with the highest of the baseline's split."""
    best: dict[str, tuple[float, VariantCapacity]] = {}
    for capacity in capacities:
        if (value := capacity.load) is not None and (split := splits.get(capacity.variant)):
            entry = value.value, capacity
            best[split] = max(best.get(split, entry), entry, key=lambda b: b[0])
    own = splits.get(baseline, "")
    kinds = {s: {c.kind for c in capacities if splits.get(c.variant) == s} for s in splits.values()}
    rest = sorted(name for name, kind in kinds.items() if kind == {Kind.NEVER})
    none = [
        f"On {machine}, {_words(split)} {_verb(split)} no rate that was tried." for split in rest
    ]
    if own not in best:
        if own not in rest:
            return []
        sustained = [
            f"On {machine}, {_named(split, capacity.variant, splits)} {_verb(split)}"
            f" {capacity.text(highest)}."
            for split, (highest, capacity) in best.items()
        ]
        return [*sustained, *none]
    base_value, base = best[own]
    sentences = []
    for split, (highest, capacity) in best.items():
        ratio = capacity_ratio(capacity.loads, base.loads)
        if split == own or ratio is None:
            continue
        even = ratio.low <= 1 <= ratio.high or abs(ratio.value - 1) <= EQUAL_WITHIN
        sentences.append(
            f"On {machine}, {_named(split, capacity.variant, splits)} {_verb(split)}"
            f" {capacity.text(highest)}, {_ratio(ratio)} as many as"
            f" {_named(own, base.variant, splits)}, which {_verb(own)} {base_value:.3g}"
            f"{_no_difference(even=even)}."
        )
    return [*sentences, *none]


def splits_by_jct(
    there: Sequence[Point],
    splits: Mapping[str, str],
    baseline: str,
    jobs: pd.DataFrame,
    versus: Callable[[pd.DataFrame, pd.DataFrame], Comparison | None],
) -> list[str]:
    """Compare the fastest variant of each split with the fastest of the baseline's split, at one
    rate. `there`: points of the rate. `jobs`: their jobs."""
    best: dict[str, Point] = {}
    for point in sorted(there, key=lambda p: (p.saturated, p.jct_mean_s.value)):
        best.setdefault(splits.get(point.variant, ""), point)
    own, load = splits.get(baseline, ""), there[0].load
    rest = sorted(set(splits.values()) - best.keys())
    names = {split: _words(split)[:1].upper() + _words(split)[1:] for split in rest}
    lacking = [f"{names[s]} {_has(s)} no valid steady state at {load}." for s in rest]
    if own not in best:
        means = [
            f"At {load} the mean job completion time (JCT) is {seconds(point.jct_mean_s.value)}"
            f" with {_named(split, point.variant, splits)}."
            for split, point in best.items()
            if split
        ]
        return [*means, *lacking] if means and own else []
    base = best.pop(own)
    sentences = []
    for split, point in best.items():
        gain = versus(*(jobs[jobs["variant"] == p.variant] for p in (base, point)))
        if gain is None or not split:
            continue
        even = gain.mean.has_interval and not gain.mean.differs_from_one
        sentences.append(
            f"At {point.load} {_named(split, point.variant, splits)} {_is(split)}"
            f" {_ratio(gain.mean)} as fast as {_named(own, base.variant, splits)}: the mean job"
            f" completion time (JCT) is {seconds(point.jct_mean_s.value)} instead of"
            f" {seconds(base.jct_mean_s.value)}{_no_difference(even=even)}."
        )
    return [*sentences, *lacking]


def _words(split: str) -> str:
    return BOTH if split == NONE else split


def _named(split: str, variant: str, splits: Mapping[str, str]) -> str:
    """Name the split, and the variant if several have that split."""
    alone = list(splits.values()).count(split) == 1
    return _words(split) if alone else f"{_words(split)} with {variant}"


def _verb(split: str) -> str:
    return "sustain" if split == NONE else "sustains"


def _is(split: str) -> str:
    return "are" if split == NONE else "is"


def _has(split: str) -> str:
    return "have" if split == NONE else "has"


def _ratio(ratio: Estimate) -> str:
    return f"{times(ratio.value)} ({interval(ratio)})"


def _no_difference(*, even: bool) -> str:
    return ", no significant difference" if even else ""
