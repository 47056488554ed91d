"""Errors of virtual time against end-to-end measurements, their tables, and targets.

In: a `Prediction` per measurement. Out: the checks, and the rows of tables. Times are seconds;
errors are signed ratios: above zero, virtual time is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from reports.fidelity.targets import TargetCheck, TargetVerdict
from servers.basics.phrasing import counted
from tools.silicon.rows import Row

MAX_TTFT_ERROR, MAX_TPOT_ERROR = 0.15, 0.08
"""Targets of the median absolute errors of dense models in 16 or 8 bits, in the judging half."""
COLUMNS = (
    *("rows", "TTFT: median", "P90", "bias"),
    *("TPOT: median", "P90", "bias"),
)

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What virtual time gives for a measurement, beside it."""

    row: Row
    virtual_ttft_s: float
    virtual_tpot_s: float

    @property
    def ttft_error(self) -> float:
        return self.virtual_ttft_s / self.row.ttft_s - 1

    @property
    def tpot_error(self) -> float:
        return self.virtual_tpot_s / self.row.tpot_s - 1


class TimeErrors(NamedTuple):
    """Of one quantity over several predictions."""

    median: float
    """Of the absolute error."""
    p90: float
    """Of the absolute error."""
    bias: float
    """Median of the signed error."""


class ErrorSummary(NamedTuple):
    rows: int
    ttft: TimeErrors
    tpot: TimeErrors

    def texts(self) -> list[str]:
        """Return the values of `COLUMNS`."""
        texts = [str(self.rows)]
        for errors in (self.ttft, self.tpot):
            texts += [f"{errors.median:.1%}", f"{errors.p90:.1%}", f"{errors.bias:+.1%}"]
        return texts


def summary(predictions: Sequence[Prediction]) -> ErrorSummary:
    """`predictions` must not be empty."""
    ttft = _errors([p.ttft_error for p in predictions])
    return ErrorSummary(len(predictions), ttft, _errors([p.tpot_error for p in predictions]))


def _errors(signed: Sequence[float]) -> TimeErrors:
    sizes = np.abs(signed)
    return TimeErrors(
        median=float(np.median(sizes)),
        p90=float(np.percentile(sizes, 90)),
        bias=float(np.median(signed)),
    )


def by(predictions: Sequence[Prediction], key: Callable[[Row], Key]) -> dict[Key, ErrorSummary]:
    """Return the summaries of groups, each group where its first prediction is."""
    groups: dict[Key, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(key(prediction.row), []).append(prediction)
    return {group: summary(members) for group, members in groups.items()}


def pair_rows(predictions: Sequence[Prediction]) -> list[list[str]]:
    found = by(predictions, lambda row: (row.hardware, row.model))
    return [[*pair, *each.texts()] for pair, each in sorted(found.items())]


def apart_rows(predictions: Sequence[Prediction]) -> list[list[str]]:
    """Return the table of dense models and others, and of public and other measurements. A kind
    with the same measurements as another has no row."""
    dense = [p for p in predictions if p.row.checkpoint.dense]
    judging = [p for p in dense if p.row.judges]
    kinds = (
        ("dense models in 16 or 8 bits", dense),
        ("of these, the calibrating half", [p for p in dense if not p.row.judges]),
        ("of these, the judging half", judging),
        ("judging, with public settings", [p for p in judging if p.row.public]),
        ("judging, with other settings", [p for p in judging if not p.row.public]),
        ("other models", [p for p in predictions if not p.row.checkpoint.dense]),
        ("all", list(predictions)),
    )
    rows = []
    alike: list[list[Prediction]] = []
    for name, members in kinds:
        if members and members not in alike:
            rows.append([name, *summary(members).texts()])
            alike.append(members)
    return rows


def judge(predictions: Sequence[Prediction]) -> TargetVerdict:
    judging = [p for p in predictions if p.row.checkpoint.dense and p.row.judges]
    found = summary(judging) if judging else None
    checks = []
    for what, limit in (("ttft", MAX_TTFT_ERROR), ("tpot", MAX_TPOT_ERROR)):
        target = f"median absolute error of {what.upper()} within {limit:.0%}"
        text, held = "no measurement of a dense model in the judging half", None
        if found is not None:
            median = getattr(found, what).median
            measured = counted(found.rows, "measurement")
            text = f"{median:.1%} over {measured} of dense models in the judging half"
            held = bool(median <= limit)
        checks.append(TargetCheck(target, text, held))
    return TargetVerdict(tuple(checks))


def headline(predictions: Sequence[Prediction], verdict: TargetVerdict) -> str:
    found = summary(predictions)
    met = f"{sum(c.held is True for c in verdict.checks)} of {len(verdict.checks)} targets met"
    return (
        f"TTFT is off by {found.ttft.median:.1%} and TPOT by {found.tpot.median:.1%} at the median "
        f"of {counted(found.rows, 'measurement')}: {met}."
    )
