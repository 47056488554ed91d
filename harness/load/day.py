"""The hours of a day: jobs arrive at a rate that follows a profile of 24 relative hourly rates.

In: the PROFILE of `--arrivals day:PROFILE`: a name, a file with 24 numbers, or these numbers. Out:
rates relative to their mean, and start times. Gaps are drawn as for a constant rate, in a time that
passes faster in busy hours, so the rate of a cell is the mean of its days. Times begin at midnight.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np

from servers.basics.errors import InvalidInput
from servers.basics.text import quoted

HOURS, HOUR_S, DAY_S = 24, 3600.0, 86_400.0
PROFILES = {
    "office": (
        *(5, 5, 5, 5, 5, 5, 10, 25, 60, 90, 100, 95),
        *(65, 85, 100, 100, 90, 65, 35, 25, 20, 15, 10, 5),
    )
}
"""Synthesised, not measured: office hours with a dip at noon, and a twentieth of the peak at night.
The busiest hour has 2.3 times the mean."""
NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?", re.ASCII)
MOST_BYTES = 4096
Hours = tuple[float, ...]


def parse_day(profile: str) -> Hours:
    """Return 24 rates. Raises InvalidInput."""
    if profile in PROFILES:
        return tuple(map(float, PROFILES[profile]))
    text = profile if "," in profile else _read(profile)
    numbers = re.split(r"[\s,]+", text.strip())
    for number in numbers:
        if not NUMBER.fullmatch(number):
            raise _refused(profile, f"{quoted(number)} is not a rate of 0 or more")
    hours = tuple(map(float, numbers))
    if len(hours) != HOURS:
        raise _refused(profile, f"has {len(hours)} rates; give one for each hour, from midnight")
    if not any(hours):
        raise _refused(profile, "all rates are 0; give one above 0")
    return hours


def _read(profile: str) -> str:
    path = Path(profile)
    if not path.is_file():
        names = ", ".join(PROFILES)
        raise _refused(profile, f"no such file; use {names}, or a file with 24 relative rates")
    with path.open("rb") as file:
        return file.read(MOST_BYTES).decode(errors="replace")


def _refused(profile: str, reason: str) -> InvalidInput:
    return InvalidInput(f"--arrivals day:{profile}: {reason}")


def in_numbers(profile: str) -> str:
    """Return the profile so that it needs no file."""
    if profile in PROFILES:
        return profile
    return ",".join(np.format_float_positional(rate, trim="-") for rate in parse_day(profile))


def at_hours(times_s: Iterable[float], hours: Hours) -> Iterator[float]:
    """Yield the times of arrivals at these rates for times of arrivals at their mean."""
    busy = [hour for hour, rate in enumerate(hours) if rate]
    scale = DAY_S / sum(hours)
    ends = list(accumulate(hours[hour] * scale for hour in busy))
    for at_s in times_s:
        days, rest_s = divmod(at_s, DAY_S)
        place = min(bisect_right(ends, rest_s), len(busy) - 1)
        left_s = (ends[place] - rest_s) / (hours[busy[place]] * scale) * HOUR_S
        yield days * DAY_S + (busy[place] + 1) * HOUR_S - left_s
