"""Computes the duration of consecutive decode steps. Each takes `increment_ps` longer than the
previous one, since every decode reads one more token. Times are whole picoseconds."""

from __future__ import annotations

import math
from typing import NamedTuple


class Pace(NamedTuple):
    """Consecutive steps of a batch."""

    steps: int
    first_ps: int
    increment_ps: int
    tokens: int
    """Of each step."""


def duration_ps(steps: int, first_ps: int, increment_ps: int) -> int:
    """Return Σ first_ps + i · increment_ps over i = 0 … steps - 1."""
    if steps == 1:
        return first_ps
    return steps * first_ps + increment_ps * (steps * (steps - 1) // 2)


def steps_until(left_ps: int, most: int, first_ps: int, increment_ps: int) -> int:
    """Return the smallest number of steps that take at least `left_ps`, within 1 … `most`."""
    left_ps = max(left_ps, 1)
    if duration_ps(most, first_ps, increment_ps) <= left_ps:
        return most
    # Solve the quadratic in floating point, then correct the result with exact integers.
    half = first_ps - 0.5 * increment_ps
    guess = 2 * left_ps / (half + math.sqrt(half * half + 2.0 * increment_ps * left_ps))
    steps = min(max(int(guess), 1), most)
    total_ps = duration_ps(steps, first_ps, increment_ps)
    while steps > 1 and total_ps - first_ps - (steps - 1) * increment_ps >= left_ps:
        steps -= 1
        total_ps -= first_ps + steps * increment_ps
    while steps < most and total_ps < left_ps:
        total_ps += first_ps + steps * increment_ps
        steps += 1
    return steps
