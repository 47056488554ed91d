"""Parse `--jps`, `--agents`, `--burst` and `--seeds`.

In: text. Out: ascending distinct values; InvalidInput names the value and a remedy. Rates are in
programs per second. Steps are exact decimals: 0.05..0.9:0.05 contains 0.15.
"""

from __future__ import annotations

import re
from fractions import Fraction

from reports.loads import MOST_JOBS
from servers.basics.errors import InvalidInput
from servers.basics.text import quoted

GRID = tuple(Fraction(r, 100) for r in (5, 10, 15, 20, 25, 30, 50, 70, 90))
"""Rates of the papers' figures (implementation analysis, §11), in programs per second."""
MAX_VALUES = 1000
"""Limit of rates and of seeds; more are considered a mistake."""
NUMBER = re.compile(r"(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE]([+-]?\d+))?", re.ASCII)
MIN_RATE, MAX_RATE = Fraction(1, 1_000_000), Fraction(1_000_000)
SEED = re.compile(r"\d{1,18}", re.ASCII)
COUNTS = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
EXAMPLES = {
    "--jps": "0.05..0.9 or 0.1,0.5",
    "--agents": "40 or 8,16,32",
    "--burst": "50 or 0,25,50,100",
    "--seeds": "1..5 or 0,3,7",
}


def parse_rates(text: str) -> tuple[float, ...]:
    """Parse items separated by commas: `0.13`, `a..b` (both bounds, and the papers' grid between
    them) or `a..b:step` (from a up to b)."""
    rates: set[Fraction] = set()
    for item in _items("--jps", text):
        bounds, colon, step = item.partition(":")
        low, dots, high = bounds.partition("..")
        if not dots:
            if colon:
                raise _bad("--jps", text, "a step needs a range, as in 0.05..0.9:0.05")
            rates.add(_rate(text, low))
            continue
        a, b = _rate(text, low), _rate(text, high)
        if a > b:
            raise _bad("--jps", text, f"the range is reversed; use {high.strip()}..{low.strip()}")
        if not colon:
            rates |= {a, b, *(r for r in GRID if a < r < b)}
            continue
        increment = _number(text, step)
        if (b - a) / increment >= MAX_VALUES:
            raise _bad("--jps", text, f"more than {MAX_VALUES} rates; use a larger step")
        rates |= {a + k * increment for k in range(int((b - a) / increment) + 1)}
    if len(rates) > MAX_VALUES:
        raise _bad("--jps", text, f"more than {MAX_VALUES} rates; use fewer")
    return tuple(sorted({float(rate) for rate in rates}))


def parse_agents(text: str) -> tuple[int, ...]:
    return _counts("--agents", text, 1)


def parse_bursts(text: str) -> tuple[int, ...]:
    """Return numbers of jobs; 0 is no burst."""
    return _counts("--burst", text, 0)


def _counts(option: str, text: str, least: int) -> tuple[int, ...]:
    """Parse items separated by commas: `40`, or `a..b:step` (from a up to b)."""
    found: set[int] = set()
    for item in _items(option, text):
        match = COUNTS.fullmatch(item)
        if match is None:
            raise _bad(option, text, f"{quoted(item)} is not a whole number; use 40, or 10..50:10")
        low, high = int(match[1]), int(match[2] or match[1])
        step = int(match[3] or 1)
        if not least <= low <= high <= MOST_JOBS or not step:
            limits = f"numbers from {least} to {MOST_JOBS:,}, the smaller first"
            raise _bad(option, text, f"{quoted(item)}: use {limits}")
        found |= set(range(low, high + 1, step))
    if len(found) > MAX_VALUES:
        raise _bad(option, text, f"more than {MAX_VALUES} numbers; use fewer")
    return tuple(sorted(found))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse items separated by commas: `3`, or `1..5` with both bounds. 0 is a seed."""
    seeds: set[int] = set()
    for item in _items("--seeds", text):
        low, dots, high = item.partition("..")
        a = _seed(text, low)
        b = _seed(text, high) if dots else a
        if a > b:
            raise _bad("--seeds", text, f"the range is reversed; use {high.strip()}..{low.strip()}")
        if b - a < MAX_VALUES:
            seeds |= set(range(a, b + 1))
        if b - a >= MAX_VALUES or len(seeds) > MAX_VALUES:
            raise _bad("--seeds", text, f"more than {MAX_VALUES} seeds; use fewer")
    return tuple(sorted(seeds))


def _items(option: str, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        problem = "an item is empty" if text.strip() else "no value"
        example = EXAMPLES[option]
        raise _bad(option, text, f"{problem}; use for example {example}")
    return items


def _rate(text: str, number: str) -> Fraction:
    value = _number(text, number)
    if not MIN_RATE <= value <= MAX_RATE:
        raise _out_of_bounds(text, number)
    return value


def _out_of_bounds(text: str, number: str) -> InvalidInput:
    return _bad("--jps", text, f"{quoted(number)} is not within 0.000001 to 1,000,000 per second")


def _number(text: str, number: str) -> Fraction:
    match = NUMBER.fullmatch(number.strip())
    if match is None:
        raise _bad("--jps", text, f"{quoted(number)} is not a positive number; use e.g. 0.2")
    if len((match[1] or "").lstrip("+-0")) > 2:
        raise _out_of_bounds(text, number)
    value = Fraction(number.strip())
    if value == 0:
        raise _bad("--jps", text, "a rate or step of zero is not allowed; use a positive number")
    return value


def _seed(text: str, number: str) -> int:
    if not SEED.fullmatch(number.strip()):
        raise _bad(
            "--seeds", text, f"{quoted(number)} is not a seed; use whole numbers of at least 0"
        )
    return int(number)


def _bad(option: str, text: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{option} {quoted(text)}: {reason}")
