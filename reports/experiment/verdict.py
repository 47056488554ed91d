"""Combines the findings of an experiment into an outcome and a sentence.

In: findings. Out: holds, does not hold, cannot be said, or not testable here, with the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.experiment.judge import Finding
from reports.experiment.significance import ClaimOutcome, best, worst
from servers.basics.phrasing import counted, listed

SHOWN = 3
"""Claims in a sentence."""


def outcome_of(findings: Sequence[Finding]) -> ClaimOutcome | None:
    """Return the outcome of all claims; of the best interpretation if there are several. None
    without findings."""
    readings = _by_reading(findings)
    return best(worst(f.outcome for f in own) for own in readings.values()) if readings else None


def _by_reading(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    common = [f for f in findings if not f.reading]
    readings = dict.fromkeys(f.reading for f in findings if f.reading) or {"": None}
    found = {r: [f for f in findings if r and f.reading == r] + common for r in readings}
    return {reading: mine for reading, mine in found.items() if mine}


def verdict(findings: Sequence[Finding], not_testable: str = "") -> str:
    """Return a sentence that begins with the outcome, with the numbers that decide it."""
    readings = _by_reading(findings)
    if not readings:
        return f"Not testable here: {not_testable or 'the experiment has no checks'}"
    if len(readings) > 1 or "" not in readings:
        return " ".join(
            f"Read as “{name}”: {sentence[0].lower()}{sentence[1:]}"
            for name, mine in readings.items()
            for sentence in [_sentence(mine, at_most=1)]
        )
    return _sentence(readings[""])


def _sentence(findings: Sequence[Finding], at_most: int = SHOWN) -> str:
    outcome = worst(f.outcome for f in findings)
    if outcome is ClaimOutcome.HOLDS:
        return f"Holds: {listed([f'{f.says} ({f.ours})' for f in findings], at_most=at_most)}."
    shown = [f for f in findings if f.outcome is outcome]
    reasons = listed([_reason(f) for f in shown], at_most=at_most)
    rest = [
        f"{number} {words}"
        for other, words in ((ClaimOutcome.HOLDS, "hold"), (ClaimOutcome.OPEN, "cannot be said"))
        if other is not outcome and (number := sum(f.outcome is other for f in findings))
    ]
    counts = f" Of {counted(len(findings), 'claim')} {' and '.join(rest)}." if rest else ""
    return f"{outcome.capitalize()}: {reasons}.{counts}"


def _reason(finding: Finding) -> str:
    published = f", published {finding.published}" if finding.published else ""
    return f"“{finding.says}”, ours {finding.ours}{published}"
