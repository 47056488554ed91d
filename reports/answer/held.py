"""Evaluates a condition of `--fail-unless`.

In: a condition, and an answer with its points. Out: whether it holds, and its text with numbers. A
value is a range, because some values are not known exactly: the JCT of an unstable cell is
infinite, and if no rate was sustained, the capacity is between 0 and the lowest rate searched.
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import truediv
from typing import NamedTuple

from reports.answer.condition import (
    ARITHMETIC,
    COMPARISONS,
    Condition,
    function_of,
    load_of,
    variant_of,
)
from reports.answer.verdict import Answer
from reports.capacity.estimate import Capacity, Kind
from reports.loads import RATES
from reports.statistics.capacities import VariantCapacity, some_seeds
from reports.statistics.over_seeds import geometric_mean
from reports.statistics.points import Point
from servers.basics.phrasing import listed

JCTS: Mapping[str, Callable[[Point], float]] = {
    "mean_jct": lambda p: p.jct_mean_s.value,
    "p50_jct": lambda p: p.jct_s["jct_p50_s"],
    "p90_jct": lambda p: p.jct_s["jct_p90_s"],
    "p95_jct": lambda p: p.jct_s["jct_p95_s"],
    "p99_jct": lambda p: p.jct_s["jct_p99_s"],
}


@dataclass(frozen=True, slots=True)
class Held:
    holds: bool
    sentence: str


class _NoValue(Exception):
    """A capacity or JCT was not measured; the message says why."""


def evaluate(condition: Condition, answer: Answer, points: Sequence[Point]) -> Held:
    """Return whether the condition holds. A condition that cannot be decided does not hold."""
    values: list[str] = []

    def value(call: ast.Call) -> Range:
        number, words = _value(call, answer, points)
        values.append(f"{_shown(call)} {words}")
        return number

    try:
        holds = _holds(condition.tree, value)
    except _NoValue as reason:
        return Held(False, f"{condition.text}: {reason}")
    except ZeroDivisionError:
        return Held(False, f"{condition.text}: division by zero")
    undecided = "does not hold, because it cannot be decided"
    verdict = undecided if holds is None else "holds" if holds else "does not hold"
    return Held(bool(holds), f"{condition.text}: {verdict}, {listed(list(dict.fromkeys(values)))}")


def _holds(node: ast.expr, value: Callable[[ast.Call], Range]) -> bool | None:
    """Return whether a comparison or a combination of them holds; None if the ranges overlap."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            result = _holds(operand, value)
            return None if result is None else not result
        case ast.BoolOp(op=op, values=parts):
            results = [_holds(part, value) for part in parts]  # no short circuit: show all
            decides = isinstance(op, ast.Or)
            return decides if decides in results else None if None in results else not decides
        case ast.Compare(ops=ops, left=left, comparators=others):
            sides = [_number(each, value) for each in (left, *others)]
            results = [
                compared(COMPARISONS[type(op)], a, b)
                for op, a, b in zip(ops, sides, sides[1:], strict=False)
            ]
            return False if False in results else None if None in results else True
        case _:
            number = _number(node, value)
            return None if number.low < number.high else bool(number.low)


def _number(node: ast.expr, value: Callable[[ast.Call], Range]) -> Range:
    match node:
        case ast.Constant(value=float(number) | int(number)):
            number = min(number, sys.float_info.max)  # which an integer can exceed
            return Range(float(number), float(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            of_operand = _number(operand, value)
            return Range(-of_operand.high, -of_operand.low)
        case ast.BinOp(op=op, left=left, right=right):
            return combined(ARITHMETIC[type(op)], _number(left, value), _number(right, value))
        case ast.Call():
            return value(node)
        case _:
            # Python counts a comparison as 0 or 1.
            holds = _holds(node, value)
            return Range(0, 1) if holds is None else Range(int(holds), int(holds))


def _value(call: ast.Call, answer: Answer, points: Sequence[Point]) -> tuple[Range, str]:
    """Return a number and `= NUMBER`, or its range and the reason why it is not exact."""
    name, at = variant_of(call), load_of(call)
    if function_of(call) == "capacity":
        capacity = next((each for each in answer.capacities if each.variant == name), None)
        if capacity is None:
            raise _NoValue(f"the capacity of {name} was not searched")
        return _capacity(capacity)
    point = next((p for p in points if p.variant == name and p.amount == at), None)
    if point is None:
        ladder = points[0].ladder if points else RATES
        raise _NoValue(f"{name} has no result at {ladder.label(at or 0.0)}")
    if point.failed_gates:
        raise _NoValue(f"{name} has a cell at {point.load} that failed a validity gate")
    if point.unstable:
        return UNBOUNDED, "is infinite (unstable)"
    number = JCTS[function_of(call)](point)
    return Range(number, number), f"= {number:.4g}"


def _capacity(capacity: VariantCapacity) -> tuple[Range, str]:
    if (number := capacity.load) is not None:
        return Range(number.value, number.value), f"= {number.value:.4g}"
    bounds = [_bounds(each) for each in capacity.by_seed.values()]
    if not bounds or capacity.kind is Kind.OPEN:
        return Range(0.0, math.inf), "is unknown (the search has not finished)"
    # The geometric mean over seeds is 0 with a seed that may be 0.
    low = geometric_mean(b.low for b in bounds).value if all(b.low for b in bounds) else 0.0
    highs = [b.high for b in bounds]
    high = math.inf if math.inf in highs else geometric_mean(highs).value
    if capacity.kind is Kind.NEVER:
        seeds = some_seeds(capacity.never)
        return Range(
            low, high
        ), f"is below every {capacity.ladder.noun} searched (none sustained{seeds})"
    return Range(low, high), f"is above {low:.4g} (no {capacity.ladder.noun} was too high)"


def _bounds(capacity: Capacity) -> Range:
    if capacity.kind is Kind.FOUND:
        return Range(capacity.load, capacity.load)
    if capacity.kind is Kind.NEVER:
        return Range(0.0, capacity.not_sustained or sys.float_info.min)
    return Range(capacity.sustained or 0.0, capacity.not_sustained or math.inf)


def _shown(call: ast.Call) -> str:
    at = "" if (load := load_of(call)) is None else f", at={load:g}"
    return f"{function_of(call)}({variant_of(call)}{at})"


class Range(NamedTuple):
    low: float
    high: float


UNBOUNDED = Range(math.inf, math.inf)
"""Infinite."""
UNKNOWN = Range(-math.inf, math.inf)


def combined(operation: Callable[[float, float], float], one: Range, other: Range) -> Range:
    """Apply a sum, difference, product or quotient. Raises ZeroDivisionError if `other` is 0."""
    if operation is truediv and other.low <= 0 <= other.high and other.low < other.high:
        if one.low < 0 or other.low < 0:
            return UNKNOWN
        quotient = one.low / other.high
        return UNKNOWN if math.isnan(quotient) else Range(quotient, math.inf)
    ends = [operation(a, b) for a, b in product(one, other)]
    # Infinity minus infinity, and infinity times zero, are undefined.
    return UNKNOWN if any(map(math.isnan, ends)) else Range(min(ends), max(ends))


def compared(is_true: Callable[[float, float], bool], one: Range, other: Range) -> bool | None:
    """Return the result of `<`, `<=`, `>` or `>=` if it is the same for all values.

    Overlapping ranges cannot be compared, nor can two infinite numbers, such as the JCTs of two
    unstable cells.
    """
    ends = list(product(one, other))
    if any((math.isinf(a) and a == b) or math.isnan(a) or math.isnan(b) for a, b in ends):
        return None
    results = {is_true(a, b) for a, b in ends}
    return results.pop() if len(results) == 1 else None
