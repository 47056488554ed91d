"""How long several steps take of which each lasts a little longer than the one before, since every
decode reads one more token. Whole picoseconds."""

from __future__ import annotations

import math


def lasts(steps: int, first_ps: int, more_ps: int) -> int:
    """Σ first_ps + i · more_ps over so many steps."""
    return steps * first_ps + more_ps * (steps * (steps - 1) // 2)


def steps_until(left_ps: int, most: int, first_ps: int, more_ps: int) -> int:
    """The smallest number of steps that last for `left_ps`; at least 1, at most `most`."""
    left_ps = max(left_ps, 1)
    if lasts(most, first_ps, more_ps) <= left_ps:
        return most
    # Solve the quadratic in floating point, then walk to the exact answer.
    half = first_ps - more_ps / 2
    guess = 2 * left_ps / (half + math.sqrt(half * half + 2.0 * more_ps * left_ps))
    steps = min(max(int(guess), 1), most)
    while steps > 1 and lasts(steps - 1, first_ps, more_ps) >= left_ps:
        steps -= 1
    while steps < most and lasts(steps, first_ps, more_ps) < left_ps:
        steps += 1
    return steps
