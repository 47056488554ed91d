"""Parses `--horizon`: how long jobs arrive in a cell, from an empty machine.

In: text such as `24h` or `24h,5000`, and the jobs of `--burst`. Out: a `HorizonRecord`, or None
for a steady state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.load.rates import parse_bursts
from reports.loads import MIN_JOBS, least_rate
from servers.basics.errors import InvalidInput
from servers.basics.phrasing import time_span
from servers.basics.text import quoted
from servers.records.settings import HorizonRecord

DEFAULT_HORIZON = "24h,5000"
"""A day, or 5,000 jobs if they arrive sooner, so that a cell costs seconds on every machine. Three
times the jobs of a day change capacities little (docs/design/statistics.md, "Within a horizon")."""
STEADY = "steady"
UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
LONGEST_S = 366 * 86_400
WHOLE_DAY = "24h"
"""The default with a daily profile, whose morning is no measure of its day."""
HORIZON = re.compile(r"(\d{1,8}(?:\.\d{1,6})?)\s*(s|min|h|d)(?:\s*,\s*(\d{1,9}))?", re.ASCII)


def parse_horizon(text: str, burst_text: str | None) -> HorizonRecord | None:
    """Raises InvalidInput."""
    burst = 0 if burst_text is None else _burst(burst_text)
    if text.strip() == STEADY:
        if burst_text is not None:
            raise InvalidInput(
                f"--burst {burst_text}: is for cells that begin with an empty machine; remove it, "
                f"or --horizon {STEADY}, whose cells begin with a burst of their own"
            )
        return None
    match = HORIZON.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(
            f"--horizon {quoted(text)}: give a time with its unit, such as 8h or 7d, a time and "
            f"the most jobs, such as {DEFAULT_HORIZON}, or {STEADY}"
        )
    horizon_s = float(match[1]) * UNITS_S[match[2]]
    if not 0 < horizon_s <= LONGEST_S:
        raise InvalidInput(f"--horizon {text}: must be above zero and at most 366d")
    jobs = None if match[3] is None else int(match[3])
    if jobs is not None and jobs < MIN_JOBS:
        raise InvalidInput(f"--horizon {text}: must have at least {MIN_JOBS} jobs")
    if jobs is not None and jobs - burst < MIN_JOBS:
        without_limit = text.partition(",")[0].strip()
        raise InvalidInput(
            f"--burst {burst}: at least {MIN_JOBS} of at most {jobs:,} jobs must arrive after it; "
            f"give a smaller burst, or --horizon {without_limit} without that limit"
        )
    return HorizonRecord(seconds=horizon_s, jobs=jobs, burst=burst)


def _burst(text: str) -> int:
    bursts = parse_bursts(text)
    if len(bursts) > 1:
        raise InvalidInput(f"--burst {text}: only bench sweep takes a list; give one of them")
    return bursts[0]


def refuse_part_of_day(horizon: HorizonRecord | None, text: str, process: str) -> None:
    """Raise InvalidInput for a horizon whose mean rate differs from a day's."""
    whole = horizon is not None and horizon.jobs is None and not horizon.seconds % UNITS_S["d"]
    if not whole:
        raise InvalidInput(
            f"--horizon {text}: --arrivals {process} has the mean rate over whole days only; use "
            f"--horizon {WHOLE_DAY} or 7d, without a limit of jobs"
        )
    if horizon is not None and horizon.burst:
        raise InvalidInput(
            f"--burst {horizon.burst}: begins at midnight with --arrivals {process}; remove it, or "
            "use --arrivals poisson"
        )


def refuse_rare_jobs(horizon: HorizonRecord, rates: Iterable[float | None]) -> None:
    """Raise InvalidInput if so few jobs arrive that their statistics say nothing."""
    least = least_rate(horizon.seconds)
    for rate in rates:
        if rate is not None and rate < least:
            raise InvalidInput(
                f"--jps {rate:g}: only {rate * horizon.seconds:.3g} jobs arrive in "
                f"{time_span(horizon.seconds)}; give a longer --horizon, --horizon {STEADY}, or at "
                f"least {least:.2g} jobs/s"
            )
