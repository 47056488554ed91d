"""Formats the verdict of a comparison for a terminal, and as Markdown, for CI and pull requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.compare.verdict import NONE_SUSTAINED, NOT_STEADY, STEADY, Change, Verdict
from reports.numbers import DASH
from servers.basics.phrasing import counted, listed, seconds

SIGNS = {
    "identical": "identical",
    "regression": "REGRESSION",
    "slower": "slower, within the limit",
    "faster": "faster",
    "noise": "noise",
    "unknown": "one seed: no interval",
    "undecided": "no steady state in either run",
}
CAPACITY_SIGNS = {
    "slower": "lower, within the limit",
    "faster": "higher",
    "undecided": "cannot be compared",
}
STEADY_SIGNS = {"faster": "now stable"}
ESCAPES = {ord(character): f"&#{ord(character)};" for character in "\\`*_{}[]<>#|&"}
MOST_DIFFERENT = 20
"""At most this many cells are listed that should be identical and are not."""


def headline(verdict: Verdict, max_regression: float) -> str:
    if verdict.refused:
        return f"not compared: {verdict.refused}"
    worst = verdict.regressions
    if worst:
        first = max(
            worst, key=lambda c: (abs(c.change.value), c.new in (NOT_STEADY, NONE_SUSTAINED))
        )
        # A lost steady state has no size.
        sized = all(math.isfinite(change.change.value) for change in worst)
        above = f" above {max_regression:.1%}" if sized else ""
        which = "; the largest" if len(worst) > 1 else ""
        return f"{counted(len(worst), 'regression')}{above}{which}: {_largest(first)}"
    if verdict.invalid:
        return f"no regression, but {counted(len(verdict.invalid), 'invalid cell')}"
    if verdict.must_be_identical and not verdict.identical:
        return f"not identical: {_what_differs(verdict)}"
    numbers = counted(len(verdict.changes), "number")
    if all(change.outcome == "identical" for change in verdict.changes):
        return f"all {numbers} are identical"
    return f"no regression above {max_regression:.1%} in {numbers}"


def _largest(change: Change) -> str:
    at = f"{change.variant} at {change.load}"
    name = f"capacity of {change.variant}" if change.is_capacity else at
    if isinstance(change.new, str):
        return f"{name} ({change.base}, now {change.new})"
    metric = "" if change.is_capacity else f", {change.metric}"
    return f"{name}{metric} {change.change.value:+z.1%}"


def _what_differs(verdict: Verdict) -> str:
    numbers = len(shown(verdict.changes))
    cells, only = len(verdict.different), len(verdict.unpaired)
    parts = [
        f"{numbers:,} of {counted(len(verdict.changes), 'number')}" if numbers else "",
        counted(cells, "cell") if cells else "",
        f"{counted(only, 'difference')} in policies, loads or seeds" if only else "",
    ]
    return f"{listed([part for part in parts if part])} differ"


def row(change: Change) -> tuple[str, ...]:
    e = change.change
    return (
        change.load,
        change.variant,
        change.metric,
        _value(change, change.base),
        _value(change, change.new),
        f"{e.value:+z.1%}" if math.isfinite(e.value) else DASH,
        f"{e.low:+z.1%} to {e.high:+z.1%}" if e.has_interval else DASH,
        sign(change),
    )


def _value(change: Change, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.3g} {change.metric}" if change.is_capacity else seconds(value)


def sign(change: Change) -> str:
    own = CAPACITY_SIGNS if change.is_capacity else STEADY_SIGNS if change.metric == STEADY else {}
    sign = own.get(change.outcome, SIGNS[change.outcome])
    return f"{sign} ({change.note})" if change.note else sign


HEAD = ("load", "policy", "metric", "base", "new", "change", "interval", "verdict")


def shown(changes: Sequence[Change]) -> list[Change]:
    """Return the changes that are not identical."""
    return [change for change in changes if change.outcome != "identical"]


def notes(verdict: Verdict) -> list[str]:
    """Return what the table does not show, a line each."""
    different = verdict.different if verdict.must_be_identical else ()
    more = len(different) - MOST_DIFFERENT
    return [
        *(f"different settings: {line}" for line in verdict.allowed),
        *(f"not valid: {line}" for line in verdict.invalid),
        *(f"no steady state in either run: {line}" for line in verdict.unstable),
        *(f"in one run only: {line}" for line in verdict.unpaired),
        *(f"not identical: {line}" for line in different[:MOST_DIFFERENT]),
        *([f"not identical: {counted(more, 'more cell')}"] if more > 0 else []),
    ]


def markdown(verdict: Verdict, max_regression: float) -> str:
    mark = "✅" if verdict.good else "❌"
    lines = [f"### {mark} bench compare: {_cell(headline(verdict, max_regression))}", ""]
    if found := shown(verdict.changes):
        lines += [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
        lines += [f"| {' | '.join(map(_cell, row(change)))} |" for change in found] + [""]
    same = len(verdict.changes) - len(found)
    lines += [f"Identical: {counted(same, 'number')}."] if same else []
    lines += [f"- {_cell(line)}" for line in notes(verdict)]
    if verdict.valid:
        cells = len(verdict.valid) + len(verdict.invalid)
        lines += ["", f"Valid: {len(verdict.valid):,} of {counted(cells, 'cell')} of the new run."]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Escape markup, because names come from traces and files."""
    return " ".join(text.translate(ESCAPES).split())
