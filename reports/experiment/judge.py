"""Compares a claim about a number with the results of runs, by intervals over seeds.

In: a `Check` and cells. Out: a `Finding`. A number is calculated per seed; a ratio is paired by
seed, since both sides have the same programs and arrivals. A claim holds if the interval is within
its bounds, and does not hold if the interval is outside; otherwise it cannot be said.

A claim about several points holds if it holds at each, for which the 95% intervals of the points
suffice. That one of many points misses its bound by chance is likely, so that points contradict
such a claim only if they do so together, by the procedure of Benjamini and Hochberg, which is valid
for points that depend on each other positively, as those with the same programs do. A claim about
some point is confirmed in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

import pandas as pd

from reports.experiment.claims import Check
from reports.experiment.significance import ClaimOutcome, Knee, Value, best, judged, knees, worst
from reports.metrics.cells import rows_of
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import SeedShare, some_seeds
from servers.basics.phrasing import counted, listed, share

RISING_TOLERANCE = 0.97
"""A number counts as rising if it falls by at most 3% from one arm to the next."""


@dataclass(frozen=True, slots=True)
class ClaimPoint:
    """A point of a claim, for the figure."""

    label: str
    value: Estimate
    bounds: str = ""
    """What bounds the seeds that have no number, in words. The value then covers their bounds."""


@dataclass(frozen=True, slots=True)
class Finding:
    says: str
    published: str
    ours: str
    outcome: ClaimOutcome
    reading: str = ""
    direction: str = ""
    check: Check | None = None
    points: tuple[ClaimPoint, ...] = ()


Positions = Mapping[str, float | None]
"""The position of each arm on the figure's axis; None if arms do not differ in a number."""
NO_AXIS: Positions = {}


def judge(
    check: Check, cells: Mapping[str, pd.DataFrame], positions: Positions = NO_AXIS
) -> Finding:
    """Compare a claim with `cells`, the frames of the arms in order."""
    every = [v for arm in check.arms or cells for v in _values(check, arm, cells[arm])]
    if check.over is not None:
        base = {v.jps: v for v in _values(check, check.over, cells[check.over])}
        every = [_over(v, base[v.jps]) for v in every if v.jps in base]
    if check.is_knee:
        compared = {arm: positions.get(arm) for arm in check.arms or cells}
        return _at_knees(check, [k for k in knees(check, every, compared) if k.value.seeds])
    found = [v for v in every if v.seeds]
    if not found:
        return _finding(check, _lacking(check, every) or "no result", ClaimOutcome.OPEN, found)
    if check.where in ("rising", "stable"):
        return _along(check, found, every)
    bounds = [(v, check.least, check.most) for v in found]
    is_some = check.where == "some"
    outcomes = judged(bounds, ClaimOutcome.HOLDS if is_some else ClaimOutcome.FAILS)
    outcome = best(outcomes) if is_some else worst(outcomes)
    return _finding(check, _ours(check, found, outcomes, every), outcome, found)


def _finding(check: Check, ours: str, outcome: ClaimOutcome, found: Sequence[Value]) -> Finding:
    points = tuple(ClaimPoint(_label(v, found), v.estimate()) for v in found if v.by_seed)
    return Finding(
        *(check.says, check.published, ours, outcome, check.reading, check.direction),
        check=check,
        points=points,
    )


def _at_knees(check: Check, found: Sequence[Knee]) -> Finding:
    """Judge positions of knees. Where arms only bound a knee, a claim must have the same outcome at
    the bound and infinitely far beyond it."""
    if not found:
        return _finding(check, "no result", ClaimOutcome.OPEN, ())
    values = [knee.value for knee in found]
    near, far = (
        judged([(v, check.least, check.most) for v in some], ClaimOutcome.FAILS)
        for some in ([knee.at_bounds for knee in found], values)
    )
    outcome = worst(n if n is f else ClaimOutcome.OPEN for n, f in zip(near, far, strict=True))
    ours = "; ".join(
        f"{_knee(knee)} at {knee.value.jps:g} jobs/s" if len(found) > 1 else _knee(knee)
        for knee in found
    )
    points = tuple(
        ClaimPoint(_label(knee.value, values), knee.at_bounds.estimate(), knee.bounds)
        for knee in found
    )
    return replace(_finding(check, ours, outcome, ()), points=points)


def _knee(knee: Knee) -> str:
    value = knee.value
    if not knee.bounds:
        return _shown(value.estimate(), _position)
    if not value.by_seed and not (value.above and value.below):
        return knee.bounds
    side = "about" if value.above and value.below else "at least" if value.above else "at most"
    return f"{side} {_position(knee.at_bounds.estimate().value)} ({knee.bounds})"


def _position(number: float) -> str:
    return f"{number:.3g}"


def _along(check: Check, found: Sequence[Value], every: Sequence[Value]) -> Finding:
    """Judge how numbers change. Points without a number at some seed leave the claim open, unless
    the others contradict it."""
    numbers = [v for v in found if v.by_seed]
    if not numbers:
        return _finding(check, _lacking(check, every), ClaimOutcome.OPEN, found)
    finding = _rising(check, numbers) if check.where == "rising" else _stable(check, numbers)
    if lacking := _lacking(check, every):
        is_open = finding.outcome is ClaimOutcome.HOLDS
        outcome = ClaimOutcome.OPEN if is_open else finding.outcome
        return replace(finding, ours=f"{finding.ours}; {lacking}", outcome=outcome)
    return finding


def _is_unstable(check: Check, row: Mapping[Any, Any]) -> bool:
    is_side = row["variant"] in (check.of, check.to)
    has_load = check.metric != "capacity_jobs_per_s" and not pd.isna(row["jps"])
    return is_side and has_load and bool(row.get("unstable"))


def _values(check: Check, arm: str, cells: pd.DataFrame) -> list[Value]:
    """Return a value for each load, by seed. Without a load there is one, at 0. A seed with which
    neither side has a steady state has no number."""
    if cells.empty or (column := _column(check)) not in cells:
        return []
    numbers: dict[tuple[str, float, int], float] = {}
    ranks: dict[tuple[str, float, int], int] = {}
    for row in rows_of(cells):
        has_load = check.metric != "capacity_jobs_per_s" and not pd.isna(row["jps"])
        key = (row["variant"], float(row["jps"]) if has_load else 0.0, int(row["seed"]))
        ranks[key] = _rank(check, row, row[column])
        is_kept = check.better or not _is_unstable(check, row)
        numbers[key] = row[column] if is_kept else math.nan
    by_load: dict[float, Value] = {}
    for key, number in numbers.items():
        variant, jps, seed = key
        if variant != check.of or (check.loads and jps not in check.loads):
            continue
        to = None if check.to is None else (check.to, jps, seed)
        if to is not None and to not in numbers:
            continue
        rank = ranks[key] - (0 if to is None else ranks[to])
        found = by_load.get(jps, Value(arm, jps, {}))
        other = 1.0 if to is None else numbers[to]
        if rank:
            name = "above" if rank > 0 else "below"
            by_load[jps] = found._replace(**{name: getattr(found, name) | {seed}})
        elif ranks[key]:
            by_load[jps] = found._replace(neither=found.neither | {seed})
        elif other and not math.isnan(number / other):
            by_load[jps] = found._replace(by_seed={**found.by_seed, seed: number / other})
    return list(by_load.values())


def _rank(check: Check, row: Mapping[Any, Any], number: float) -> int:
    """Return 1 for what is larger than any number, -1 for what is smaller, and 0 for a number: the
    JCT without a steady state is larger, and the capacity where no rate is sustained is smaller."""
    if _is_unstable(check, row):
        return {"lower": 1, "higher": -1}.get(check.better, 0)
    if check.metric == "capacity_jobs_per_s":
        return {0.0: -1, math.inf: 1}.get(number, 0)
    return 0


def _column(check: Check) -> str:
    return f"turn_{check.turn}_s" if check.metric == "turn_mean_s" else check.metric


def _rising(check: Check, found: Sequence[Value]) -> Finding:
    """The last must be above the first, and none much below the one before it."""
    ratios: list[tuple[Value, float]] = []
    ours = []
    for jps in dict.fromkeys(v.jps for v in found):
        row = [v for v in found if v.jps == jps]
        ratios += [(_over(b, a), RISING_TOLERANCE) for a, b in pairwise(row)]
        ratios.append((_over(row[-1], row[0]), 1.0))
        growth = _shown(ratios[-1][0].estimate(), lambda n: f"{n:.2f}x")
        steps = " → ".join(_number(check, v.estimate().value) for v in row)
        ours.append(f"{steps}, the last {growth} the first")
    outcomes = judged([(v, least, None) for v, least in ratios], ClaimOutcome.FAILS)
    return _finding(check, "; ".join(ours), worst(outcomes), found)


def _stable(check: Check, found: Sequence[Value]) -> Finding:
    """No value may be more than `most` times another one."""
    most = check.most or 1.0
    ratios = [_over(max(a, b, key=_mean), min(a, b, key=_mean)) for a, b in combinations(found, 2)]
    outcome = worst(judged([(r, None, most) for r in ratios], ClaimOutcome.FAILS))
    means = [v.estimate().value for v in found]
    ours = _span(check, min(means), max(means))
    if ratios:
        widest = max((r.estimate() for r in ratios), key=lambda e: e.value)
        ours += f", a factor of {_shown(widest, lambda n: f'{n:.2f}')}"
    return _finding(check, ours, outcome, found)


def _mean(value: Value) -> float:
    return value.estimate().value


def _over(above: Value, below: Value) -> Value:
    seeds = above.by_seed.keys() & below.by_seed.keys()
    return Value(
        above.arm,
        above.jps,
        {s: above.by_seed[s] / below.by_seed[s] for s in sorted(seeds)} or {0: math.nan},
    )


def _ours(
    check: Check, found: Sequence[Value], outcomes: Sequence[ClaimOutcome], every: Sequence[Value]
) -> str:
    """Return the range of the numbers, the point that contradicts the claim most clearly, and where
    there is no number."""
    numbers = [(v, o) for v, o in zip(found, outcomes, strict=True) if v.by_seed]
    texts = [_of_numbers(check, found, numbers, outcomes)] if numbers else []
    return "; ".join(filter(None, [*texts, _lacking(check, every)]))


def _of_numbers(
    check: Check,
    found: Sequence[Value],
    numbers: Sequence[tuple[Value, ClaimOutcome]],
    outcomes: Sequence[ClaimOutcome],
) -> str:
    if len(found) == 1:
        return _shown(numbers[0][0].estimate(), lambda n: _number(check, n))
    means = [v.estimate().value for v, _ in numbers]
    counts = [f"{o} at {n}" for o in ClaimOutcome if (n := outcomes.count(o))]
    text = _span(check, min(means), max(means))
    if len(counts) > 1:
        text += f" at {counted(len(found), 'point')}: {', '.join(counts)}"
    missed = [v for v, o in numbers if o is ClaimOutcome.FAILS]
    if missed and len(counts) > 1:
        far = max(missed, key=lambda v: _distance(check, v.estimate().value))
        shown = _shown(far.estimate(), lambda n: _number(check, n))
        text += f" (not: {_label(far, found)}, {shown})"
    unclear = [v for v, o in numbers if o is ClaimOutcome.OPEN and v.seeds == len(v.by_seed)]
    if not missed and unclear and len(counts) > 1:
        shown = _shown(unclear[0].estimate(), lambda n: _number(check, n))
        text += f" (unclear: {_label(unclear[0], found)}, {shown})"
    return text


def _lacking(check: Check, every: Sequence[Value]) -> str:
    """Say where a side has no steady state, or no capacity that is a number."""
    return listed([phrase for value in every for phrase in _lacking_at(check, value, every)])


def _lacking_at(check: Check, value: Value, every: Sequence[Value]) -> Iterator[str]:
    of_lacks, to_lacks = value.above, value.below
    if check.better == "higher":
        of_lacks, to_lacks = to_lacks, of_lacks
    of_and_to = ((f"{check.of} has no", of_lacks), (f"{check.to} has no", to_lacks))
    for side, lacking in (*of_and_to, ("neither side has a", value.neither)):
        if not lacking:
            continue
        at = f" at {_label(value, every)}" if len(every) > 1 or value.jps else ""
        seeds = some_seeds(SeedShare(len(lacking), value.seeds + len(value.neither)))
        if check.metric == "capacity_jobs_per_s":
            yield f"a capacity could not be determined{at}{seeds}"
        else:
            yield f"{side} steady state{at}{seeds}"


def _distance(check: Check, number: float) -> float:
    """Return how far a number is outside the bounds."""
    below = 0.0 if check.least is None else check.least - number
    return max(below, 0.0 if check.most is None else number - check.most)


def _label(value: Value, among: Sequence[Value]) -> str:
    """Name a point by what distinguishes it from the others."""
    load = f"{value.jps:g} jobs/s" if value.jps else ""
    arms = len({v.arm for v in among}) > 1
    return ", ".join(filter(None, (value.arm if arms else "", load))) or value.arm


def _span(check: Check, low: float, high: float) -> str:
    first, last = _number(check, low), _number(check, high)
    return first if first == last else f"{first} to {last}"


def _shown(own: Estimate, text: Callable[[float], str]) -> str:
    if not own.has_interval:
        return f"{text(own.value)} (one seed)"
    low, high = text(own.low), text(own.high)
    return text(own.value) + ("" if low == high else f" ({low} to {high})")


def _number(check: Check, number: float) -> str:
    if check.to is not None or check.over is not None:
        decimals = next((d for d in (2, 3) if _rounds_to_same_side(check, number, d)), 4)
        return f"{number:.{decimals}f}x"
    if check.metric.endswith(("_share", "_ratio", "_error")):
        return share(number)
    unit = next((f" {u}" for u in ("ms", "s") if check.metric.endswith(f"_{u}")), "")
    unit = "" if check.metric.endswith("per_s") else unit
    if unit == " s" and 0 < number < 1:
        number, unit = number * 1000, " ms"
    return f"{number:.3g}{unit}" if abs(number) < 1000 else f"{number:,.0f}{unit}"


def _rounds_to_same_side(check: Check, number: float, decimals: int) -> bool:
    """Return whether the rounded number is within the claim's bounds exactly if the number is.
    0.998 would be printed as 1.00x, which does not contradict “at least 1.0”."""
    return _inside(check, round(number, decimals)) == _inside(check, number)


def _inside(check: Check, number: float) -> bool:
    least = -math.inf if check.least is None else check.least
    most = math.inf if check.most is None else check.most
    return least <= number <= most
