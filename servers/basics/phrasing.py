"""Formats numbers and lists for sentences and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence


def seconds(value: float) -> str:
    if math.isnan(value):
        return "–"
    if 0 < value < 0.01:
        return f"{value:.2g} s"
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f} s"


def time_span(value_s: float) -> str:
    """Format a long time in the largest unit that divides it, such as `24 h`."""
    for unit, size_s in (("h", 3600), ("min", 60)):
        if value_s % size_s == 0:
            return f"{value_s / size_s:,.0f} {unit}"
    return f"{value_s:,.6g} s"


def times(value: float) -> str:
    """Format a factor such as `1.9x`, with a second decimal below 1.1."""
    return f"{value:.{decimals(value)}f}x"


def decimals(value: float) -> int:
    return 2 if value < 1.1 else 1 if value < 100 else 0


def share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"


def listed(items: Sequence[str], last: str = "and", at_most: int = 8) -> str:
    if len(items) > at_most:
        items = [*items[:at_most], f"{len(items) - at_most} more"]
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def gpus_in_words(hardware: object, gpus: int | None) -> str:
    """Return `2 x h100`, or the bare name for one GPU or an unknown number."""
    return f"{gpus} x {hardware}" if gpus and gpus > 1 else str(hardware)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
