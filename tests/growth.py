"""How the time of a function grows with its input, whatever the machine and what else it does."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

FACTOR = 8
LINEAR = 24.0
"""Above it a function is not linear: linear ones take 8 times as long for 8 times the input, and
quadratic ones 64 times."""
ENOUGH_S = 0.1


def growth(run: Callable[[int], object], size: int) -> float:
    """Return how many times the CPU time of `run(size)` `run(8 * size)` takes."""
    return _cpu_s(run, FACTOR * size) / _cpu_s(run, size)


def _cpu_s(run: Callable[[int], object], size: int) -> float:
    """Return the least time of two runs, or of more if they are short."""
    times: list[float] = []
    while len(times) < 2 or (sum(times) < ENOUGH_S and len(times) < 20):
        begin = process_time()
        run(size)
        times.append(process_time() - begin)
    return min(times)
