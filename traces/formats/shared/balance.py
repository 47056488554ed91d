"""Checks the conservation laws of an agent's calls (`traces.laws`).

In: calls that follow each other, and the gaps after them. Out: the gaps; those that take longer
than the time that passed are inferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from traces.assumptions import Gap
from traces.formats.shared.calls import Call
from traces.laws import Law
from traces.lenient import Repairs
from traces.program import Provenance

CLOCK_ERROR_S = 0.1
MEASURED = (Provenance.MEASURED, Provenance.MEASURED_WITH_PERMISSION)
MAX_CHARACTERS_PER_TOKEN = 10.0
MIN_CHARACTERS = 1_000
"""A shorter answer may be a single line of repeated characters, which have few tokens."""


def balance(
    calls: Sequence[Call],
    gaps: Sequence[Gap],
    repairs: Repairs,
    clock_error_s: float = CLOCK_ERROR_S,
) -> list[Gap]:
    """`clock_error_s`: how much longer than the time that passed a gap and a call may be."""
    for call in calls:
        _check_counts(call, repairs)
    balanced = list(gaps)
    for i, (before, call) in enumerate(pairwise(calls)):
        grown = call.prompt - before.prompt
        if grown > 0 and call.continues == -1 and not before.drops_output:
            repairs.laws.check(Law.GROWTH, grown >= before.output, grown, before.output)
        gap_s, provenance = gaps[i]
        fits = _fits(before, gap_s, call, repairs, clock_error_s)
        if not fits and provenance in MEASURED:
            balanced[i] = gap_s, Provenance.INFERRED
    return balanced


def _check_counts(call: Call, repairs: Repairs) -> None:
    if call.cached is not None:
        repairs.laws.check(Law.CACHED, call.cached <= call.prompt, call.cached, call.prompt)
    if call.characters >= MIN_CHARACTERS:
        fits = call.characters <= call.output * MAX_CHARACTERS_PER_TOKEN
        repairs.laws.check(Law.TEXT, fits, call.characters, call.output)


def _fits(before: Call, gap_s: float, call: Call, repairs: Repairs, clock_error_s: float) -> bool:
    """Return whether a gap and the call after it took no longer than from the end of the call
    before to the end of that call."""
    if before.end_s is None or call.end_s is None:
        return True
    took_s = 0.0 if call.start_s is None else max(0.0, call.end_s - call.start_s)
    spent_s, passed_s = max(0.0, gap_s) + took_s, call.end_s - before.end_s
    return repairs.laws.check(Law.SPAN, spent_s <= passed_s + clock_error_s, spent_s, passed_s)
