"""Converts points in time, as recorded by different tools, to Unix seconds."""

from __future__ import annotations

from traces.lenient import epoch
from traces.lenient import moment as iso_moment

UNITS = (1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3)
"""From these values on, a Unix time is in nanoseconds, microseconds, milliseconds."""


def moment(value: object) -> float | None:
    """Return a plausible time in Unix seconds, or None.

    Accepts ISO 8601 (UTC if it has no zone), Unix times as numbers or text, and pairs of seconds
    and nanoseconds. The unit of a number follows from its size, since times are after 1973.
    """
    if isinstance(value, list):
        if len(value) == 2 and all(isinstance(part, int) for part in value):
            return epoch(value[0] + value[1] / 1e9)
        return None
    if isinstance(value, str):
        digits = value.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            return iso_moment(digits)
        value = int(digits)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    for least, unit in UNITS:
        if value >= least:
            return epoch(value * unit) if value < 1e21 else None
    return epoch(value)
