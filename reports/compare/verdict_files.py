"""Formats the verdict of a comparison as Markdown, for pull requests, and as JUnit XML, for CI."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from reports.compare.regression import Change, Verdict
from reports.phrasing import counted, seconds

SIGNS = {
    "identical": "identical",
    "regression": "REGRESSION",
    "slower": "slower, within the limit",
    "faster": "faster",
    "noise": "noise",
    "unknown": "one seed: no interval",
}
CAPACITY_SIGNS = {"slower": "lower, within the limit", "faster": "higher"}


def headline(verdict: Verdict, max_regression: float) -> str:
    worst = verdict.regressions
    if worst:
        first = max(worst, key=lambda c: abs(c.change.value))
        return (
            f"{counted(len(worst), 'regression')} above {max_regression:.1%}; the largest: "
            f"{_name(first)} {first.change.value:+.1%}"
        )
    if verdict.invalid:
        return f"no regression, but {counted(len(verdict.invalid), 'invalid cell')}"
    changed = [c for c in verdict.changes if c.outcome != "identical"]
    if not changed:
        return f"all {counted(len(verdict.changes), 'number')} are identical"
    return f"no regression above {max_regression:.1%} in {counted(len(verdict.changes), 'number')}"


def _name(change: Change) -> str:
    if change.is_capacity:
        return f"capacity of {change.variant}"
    return f"{change.variant} at {change.load}, {change.metric}"


def row(change: Change) -> tuple[str, ...]:
    e = change.change
    return (
        change.load,
        change.variant,
        change.metric,
        _value(change, change.base),
        _value(change, change.new),
        f"{e.value:+.1%}",
        f"{e.low:+.1%} to {e.high:+.1%}" if e.has_interval else "–",
        sign(change),
    )


def _value(change: Change, value: float) -> str:
    return f"{value:.3g} jobs/s" if change.is_capacity else seconds(value)


def sign(change: Change) -> str:
    if change.is_capacity and change.outcome in CAPACITY_SIGNS:
        return CAPACITY_SIGNS[change.outcome]
    return SIGNS[change.outcome]


HEAD = ("load", "policy", "metric", "base", "new", "change", "interval", "verdict")


def shown(changes: Sequence[Change]) -> list[Change]:
    """Return the changes that are not identical."""
    return [change for change in changes if change.outcome != "identical"]


def markdown(verdict: Verdict, max_regression: float) -> str:
    mark = "✅" if verdict.good else "❌"
    lines = [f"### {mark} bench compare: {_cell(headline(verdict, max_regression))}", ""]
    if found := shown(verdict.changes):
        lines += [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
        lines += [f"| {' | '.join(map(_cell, row(change)))} |" for change in found] + [""]
    same = len(verdict.changes) - len(found)
    lines += [f"Identical: {counted(same, 'number')}."] if same else []
    lines += [f"- not valid: {_cell(line)}" for line in verdict.invalid]
    lines += [f"- in one run only: {_cell(line)}" for line in verdict.unpaired]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Escape markup, because names come from traces and files."""
    for character in "\\`*_{}[]<>#|&":
        text = text.replace(character, f"&#{ord(character)};")
    return " ".join(text.split())


def junit(verdict: Verdict) -> bytes:
    failures = len(verdict.regressions) + len(verdict.invalid)
    tests = len(verdict.changes) + len(verdict.invalid)
    suite = ElementTree.Element(
        "testsuite", name="bench compare", tests=str(tests), failures=str(failures)
    )
    for change in verdict.changes:
        name = f"{change.variant} at {change.load}"
        case = ElementTree.SubElement(suite, "testcase", classname=change.metric, name=name)
        if change.outcome == "regression":
            failure = ElementTree.SubElement(case, "failure", message=" ".join(row(change)[3:7]))
            failure.text = ", ".join(row(change))
    for line in verdict.invalid:
        case = ElementTree.SubElement(suite, "testcase", classname="validity", name=line)
        ElementTree.SubElement(case, "failure", message="not valid")
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
