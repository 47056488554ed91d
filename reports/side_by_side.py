"""The same work for each of many cells, on all cores where it is worth starting processes for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MANY = 400
"""So many cells take as long as a few times a process and its imports."""
AT_A_TIME = 20


def each(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Results in the order of the items; `work` is a function of a module."""
    cores = os.cpu_count() or 1
    if len(items) < MANY or cores == 1:
        yield from map(work, items)
        return
    # Ctrl-C is the parent's business.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(cores, get_context("spawn"), signal.signal, ignore) as pool:
        yield from pool.map(work, items, chunksize=AT_A_TIME)
