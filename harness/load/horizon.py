"""Parses `--horizon`: how long jobs arrive in a cell, from an empty machine.

In: text such as `24h`, and the jobs of `--burst`. Out: a `HorizonRecord`.
"""

from __future__ import annotations

import re

from reports.loads import least_rate
from servers.basics.errors import InvalidInput
from servers.basics.text import quoted
from servers.records.settings import HorizonRecord

UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
LONGEST_S = 366 * 86_400
HORIZON = re.compile(r"(\d{1,8}(?:\.\d{1,6})?)\s*(s|min|h|d)", re.ASCII)


def parse_horizon(text: str, burst: int) -> HorizonRecord:
    """Raises InvalidInput."""
    match = HORIZON.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(
            f"--horizon {quoted(text)}: give a time with its unit, such as 8h, 24h or 7d"
        )
    horizon_s = float(match[1]) * UNITS_S[match[2]]
    if not 0 < horizon_s <= LONGEST_S:
        raise InvalidInput(f"--horizon {text}: must be above zero and at most 366d")
    return HorizonRecord(seconds=horizon_s, burst=burst)


def refuse_rare_jobs(horizon: HorizonRecord, text: str, rates: tuple[float | None, ...]) -> None:
    """Raise InvalidInput if so few jobs arrive that their statistics say nothing."""
    least = least_rate(horizon.seconds)
    for rate in rates:
        if rate is not None and rate < least:
            raise InvalidInput(
                f"--horizon {text}: only {rate * horizon.seconds:.3g} jobs arrive at "
                f"{rate:g} jobs/s; give a longer horizon, or at least {least:.2g} jobs/s"
            )
