"""Errors of virtual time against end-to-end measurements, their summaries, and targets.

In: a `Point` per measurement. Out: `ErrorSummary` by GPU and model, by load, and by both; the
checks of the card. Times are seconds; errors are signed ratios: above zero, virtual time is slower.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from reports.fidelity.targets import TargetCheck, TargetVerdict
from servers.basics.phrasing import counted

MAX_TTFT_ERROR, MAX_TPOT_ERROR = 0.15, 0.10
"""Targets of the median absolute errors of dense models in 16 or 8 bits."""
WORST = 20
LOADS = {
    4: "1 to 4",
    8: "5 to 8",
    16: "9 to 16",
    32: "17 to 32",
    64: "33 to 64",
    128: "65 to 128",
    sys.maxsize: "more than 128",
}
"""Names of loads by their largest number of clients."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement beside what virtual time gives for it."""

    id: str
    hardware: str
    model: str
    precision: str
    gpus: int
    clients: int
    prompt_tokens: int
    output_tokens: int
    engine_version: str
    public: bool
    """Whether client and server settings of the measurement are public."""
    dense: bool
    """Whether the targets are for its model."""
    measured_ttft_s: float
    virtual_ttft_s: float
    measured_tpot_s: float
    virtual_tpot_s: float

    @property
    def ttft_error(self) -> float:
        return self.virtual_ttft_s / self.measured_ttft_s - 1

    @property
    def tpot_error(self) -> float:
        return self.virtual_tpot_s / self.measured_tpot_s - 1

    @property
    def load(self) -> str:
        return next(name for most, name in LOADS.items() if self.clients <= most)


@dataclass(frozen=True, slots=True)
class TimeErrors:
    """Of one quantity over several points."""

    median: float
    """Of the absolute error."""
    p90: float
    """Of the absolute error."""
    bias: float
    """Median of the signed error."""


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    rows: int
    ttft: TimeErrors
    tpot: TimeErrors


def summary(points: Sequence[Point]) -> ErrorSummary:
    """`points` must not be empty."""
    ttft = _errors([point.ttft_error for point in points])
    return ErrorSummary(len(points), ttft, _errors([point.tpot_error for point in points]))


def _errors(signed: Sequence[float]) -> TimeErrors:
    sizes = np.abs(signed)
    return TimeErrors(
        median=float(np.median(sizes)),
        p90=float(np.percentile(sizes, 90)),
        bias=float(np.median(signed)),
    )


def by(points: Sequence[Point], key: Callable[[Point], Key]) -> dict[Key, ErrorSummary]:
    """Return the summaries of groups, each group where its first point is."""
    groups: dict[Key, list[Point]] = {}
    for point in points:
        groups.setdefault(key(point), []).append(point)
    return {group: summary(members) for group, members in groups.items()}


def worst(points: Sequence[Point]) -> list[Point]:
    """Return the points with the largest absolute error of TTFT or TPOT, the largest first. Each
    error counts in multiples of its target."""

    def badness(point: Point) -> float:
        return max(abs(point.ttft_error) / MAX_TTFT_ERROR, abs(point.tpot_error) / MAX_TPOT_ERROR)

    return sorted(points, key=badness, reverse=True)[:WORST]


def judge(points: Sequence[Point]) -> TargetVerdict:
    dense = [point for point in points if point.dense]
    if not dense:
        none = "no measurement of a dense model in 16 or 8 bits"
        return TargetVerdict(
            tuple(
                TargetCheck(f"median absolute error of {what} within {limit:.0%}", none, None)
                for what, limit in (("TTFT", MAX_TTFT_ERROR), ("TPOT", MAX_TPOT_ERROR))
            )
        )
    found = summary(dense)
    return TargetVerdict(
        tuple(
            TargetCheck(
                f"median absolute error of {what} within {limit:.0%}",
                f"{errors.median:.1%} over {counted(found.rows, 'measurement')} of dense models in "
                f"16 or 8 bits",
                errors.median <= limit,
            )
            for what, errors, limit in (
                ("TTFT", found.ttft, MAX_TTFT_ERROR),
                ("TPOT", found.tpot, MAX_TPOT_ERROR),
            )
        )
    )
