"""One function over many things, in processes where that is worth their start.

None of them outlives its parent, however that ends.
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

Given = TypeVar("Given")
Found = TypeVar("Found")

MANY = 400
"""So many things take as long as a few times a process and its imports."""
AT_A_TIME = 20


def each(function: Callable[[Given], Found], things: Sequence[Given]) -> Iterator[Found]:
    """In the order of the things. A process is sent function and thing, and sends its finding."""
    cores = len(os.sched_getaffinity(0))
    if len(things) < MANY or cores < 2:
        yield from map(function, things)
        return
    # Not forked: numpy and pyarrow have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=context, initializer=_begin) as pool:
        yield from pool.map(function, things, chunksize=AT_A_TIME)


def _begin() -> None:
    """Ctrl-C is for the parent, which waits for what is under way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
