"""Applies a function to many items, in several processes if that is faster.

The processes end when their parent ends, even if it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from threading import Thread
from typing import TypeVar

from servers.basics.compiled_core import use_offered_core
from servers.basics.cores import cpu_cores
from servers.processes.deferred import leave_to_parent, signals_deferred

Item = TypeVar("Item")
Result = TypeVar("Result")

WORTH_S = 4.0
"""CPU time. Starting the processes and their imports takes about half of it on two cores."""
TRIAL_S = 0.5
ITEMS_PER_TASK = 20


def each(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield results in the order of the items. Function, items and results must be picklable.

    The first items show how much CPU time the others take, which other programs do not change.
    """
    cores, done, spent_s = cpu_cores(), 0, 0.0
    while done < len(items) and (spent_s < TRIAL_S or cores < 2):
        started_s = time.process_time()
        result = function(items[done])
        spent_s += time.process_time() - started_s
        done += 1
        yield result
    rest = items[done:]
    if not rest or (done and spent_s / done * len(rest) < WORTH_S):
        yield from map(function, rest)
        return
    # Processes are not forked, because NumPy and PyArrow have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=context, initializer=_initialize) as pool:
        with signals_deferred():  # which starts the processes
            results = pool.map(function, rest, chunksize=ITEMS_PER_TASK)
        yield from results


def _initialize() -> None:
    """Use the compiled core that is offered, before the function is imported. Ignore Ctrl-C, which
    the parent handles after the items in progress."""
    use_offered_core()
    leave_to_parent()
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
