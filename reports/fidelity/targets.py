"""Checks whether virtual time is close enough to a live engine.

In: their distance. Out: a verdict with a check per target. The targets are the same for every
engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reports.fidelity.distance import CellSpread, Fidelity, PairedPoint
from servers.basics.phrasing import counted

MAX_MEAN_ERROR, MAX_P95_ERROR = 0.05, 0.08
MIN_TAU = 0.9
MIN_RATES = 3


class TargetCheck(NamedTuple):
    target: str
    found: str
    held: bool | None
    """None if the target cannot be judged, such as the winner when there is one policy."""


@dataclass(frozen=True, slots=True)
class TargetVerdict:
    checks: tuple[TargetCheck, ...]

    @property
    def good(self) -> bool:
        return all(check.held is not False for check in self.checks)

    @property
    def missed(self) -> list[str]:
        return [check.target for check in self.checks if check.held is False]


def judge(found: Fidelity, invalid: int) -> TargetVerdict:
    """`invalid` is the number of cells that lack a result in a run or failed a gate."""
    return TargetVerdict(
        (
            _within("mean JCT", MAX_MEAN_ERROR, found.points, lambda p: p.mean),
            _within("P95 JCT", MAX_P95_ERROR, found.points, lambda p: p.p95),
            _same_winner(found),
            _tau(found),
            _covered(found),
            TargetCheck(
                "every cell has a result and passes its gates",
                f"{counted(invalid, 'cell')} did not, see Validity" if invalid else "all do",
                not invalid,
            ),
        )
    )


def _within(
    what: str, limit: float, points: Sequence[PairedPoint], of: Callable[[PairedPoint], CellSpread]
) -> TargetCheck:
    target = f"{what} within {limit:.0%} for each policy and load, mean over seeds"
    if not points:
        return TargetCheck(target, "nothing to compare", False)
    good = sum(abs(of(p).value) <= limit for p in points)
    worst = max(points, key=lambda p: abs(of(p).value))
    return TargetCheck(
        target,
        f"{good} of {len(points)}; worst {of(worst).value:+.1%}, {worst.variant} at {worst.load}",
        good == len(points),
    )


def _same_winner(found: Fidelity) -> TargetCheck:
    target, ranked = "the same winner under each load", [r for r in found.rankings if r.pairs]
    if not ranked:
        return TargetCheck(target, "fewer than two policies", None)
    good, worst = sum(r.same_winner for r in ranked), max(ranked, key=lambda r: r.regret)
    result = f"{good} of {len(ranked)}"
    if good < len(ranked):
        result += f"; choosing in virtual time costs up to {worst.regret:.1%} live, at {worst.load}"
    return TargetCheck(target, result, good == len(ranked))


def _tau(found: Fidelity) -> TargetCheck:
    """Loads are not judged if all policies tie and no live order is settled: nothing contends.

    If virtual time ties policies whose order is settled live, the target is missed.
    """
    target = f"Kendall's tau at least {MIN_TAU:g} under each load"
    ranked = [r for r in found.rankings if r.pairs and not (math.isnan(r.tau) and r.settled == 0)]
    if not ranked:
        return TargetCheck(target, "no two policies differ", None)
    least = min(ranked, key=lambda r: -math.inf if math.isnan(r.tau) else r.tau)
    result = f"lowest {least.tau:.2f}, at {least.load}"
    if math.isnan(least.tau):
        result = f"undefined at {least.load}, where all policies tie"
    if not math.isnan(least.tau_live):
        result += f", between live repeats {least.tau_live:.2f}"
    if least.settled is not None:
        result += f"; {least.agreed} of {counted(least.settled, 'settled pair')} agree"
    return TargetCheck(target, result, least.tau >= MIN_TAU)


def _covered(found: Fidelity) -> TargetCheck:
    loads = len(found.rankings)
    past = [r.load for r in found.rankings if r.saturated]
    result = f"{counted(loads, 'load')}, " + (
        f"past saturation {past[-1]}" if past else "none past saturation"
    )
    return TargetCheck(
        f"at least {MIN_RATES} rates, one of them past saturation",
        result,
        loads >= MIN_RATES and bool(past),
    )
