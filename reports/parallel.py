"""Applies a function to many items, in several processes if that is faster.

The processes end when their parent ends, even if it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from threading import Thread
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MIN_ITEMS = 400
"""With fewer items, starting the processes and their imports takes longer than it saves."""
ITEMS_PER_TASK = 20


def each(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield results in the order of the items. Function, items and results must be picklable."""
    cores = len(os.sched_getaffinity(0))
    if len(items) < MIN_ITEMS or cores < 2:
        yield from map(function, items)
        return
    # Processes are not forked, because NumPy and PyArrow have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=context, initializer=_initialize) as pool:
        yield from pool.map(function, items, chunksize=ITEMS_PER_TASK)


def _initialize() -> None:
    """Ignore Ctrl-C, which the parent handles after the items in progress."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
