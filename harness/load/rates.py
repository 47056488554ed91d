"""Reads `--jps` and `--seeds`.

In: text. Out: ascending, without repeats, or InvalidInput with value and remedy.
A rate is programs per second. Steps are exact decimals: 0.05..0.9:0.05 contains 0.15.
"""

from __future__ import annotations

import re
from fractions import Fraction

from servers.errors import InvalidInput

GRID = tuple(Fraction(r, 100) for r in (5, 10, 15, 20, 25, 30, 50, 70, 90))
"""Rates of the sources' figures (implementation analysis, §11), in programs per second."""
MOST = 1000
"""More rates or seeds than this in one sweep are taken for a slip."""
NUMBER = re.compile(r"(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE]([+-]?\d+))?", re.ASCII)
SLOWEST, FASTEST = Fraction(1, 1_000_000), Fraction(1_000_000)
SEED = re.compile(r"\d{1,18}", re.ASCII)


def parse_rates(text: str) -> tuple[float, ...]:
    """`0.13`, `0.1,0.5`, `a..b` (both bounds, and the sources' grid between them) or `a..b:step`
    (from a, up to b); items joined by commas."""
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
            raise _bad("--jps", text, f"the range is reversed; write {high.strip()}..{low.strip()}")
        if not colon:
            rates |= {a, b, *(r for r in GRID if a < r < b)}
            continue
        by = _number(text, step)
        if (b - a) / by >= MOST:
            raise _bad("--jps", text, f"more than {MOST} rates; take a larger step")
        rates |= {a + k * by for k in range(int((b - a) / by) + 1)}
    if len(rates) > MOST:
        raise _bad("--jps", text, f"more than {MOST} rates; take fewer")
    return tuple(sorted({float(rate) for rate in rates}))


def parse_seeds(text: str) -> tuple[int, ...]:
    """`3`, `0,3,7` or `1..5`, bounds included; 0 is a seed."""
    seeds: set[int] = set()
    for item in _items("--seeds", text):
        low, dots, high = item.partition("..")
        a = _seed(text, low)
        b = _seed(text, high) if dots else a
        if a > b:
            raise _bad(
                "--seeds", text, f"the range is reversed; write {high.strip()}..{low.strip()}"
            )
        if b - a >= MOST:
            raise _bad("--seeds", text, f"more than {MOST} seeds; take fewer")
        seeds |= set(range(a, b + 1))
    if len(seeds) > MOST:
        raise _bad("--seeds", text, f"more than {MOST} seeds; take fewer")
    return tuple(sorted(seeds))


def _items(option: str, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        what = "an item is empty" if text.strip() else "nothing given"
        example = "0.05..0.9 or 0.1,0.5" if option == "--jps" else "1..5 or 0,3,7"
        raise _bad(option, text, f"{what}; write for example {example}")
    return items


def _rate(text: str, number: str) -> Fraction:
    value = _number(text, number)
    if not SLOWEST <= value <= FASTEST:
        raise _out_of_bounds(text, number)
    return value


def _out_of_bounds(text: str, number: str) -> InvalidInput:
    return _bad("--jps", text, f"{_quoted(number)} is not within 0.000001 to 1,000,000 per second")


def _number(text: str, number: str) -> Fraction:
    found = NUMBER.fullmatch(number.strip())
    if found is None:
        raise _bad("--jps", text, f"{_quoted(number)} is no positive number; write one such as 0.2")
    if len((found[1] or "").lstrip("+-0")) > 2:
        raise _out_of_bounds(text, number)
    value = Fraction(number.strip())
    if value == 0:
        raise _bad("--jps", text, "a rate or step of zero never ends; take one above 0")
    return value


def _seed(text: str, number: str) -> int:
    if not SEED.fullmatch(number.strip()):
        raise _bad("--seeds", text, f"{_quoted(number)} is no seed; write whole numbers from 0 on")
    return int(number)


def _bad(option: str, text: str, why: str) -> InvalidInput:
    return InvalidInput(f"{option} {_quoted(text)}: {why}")


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")
