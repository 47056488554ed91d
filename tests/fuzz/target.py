"""Fuzz targets, and the limits of an input: processor time and memory.

Input n of a target is drawn from `Random("target/seed/n")`, so that its number reproduces it.
"""

from __future__ import annotations

import faulthandler
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

LIMIT_S = 10.0
"""Limit of processor time, which does not depend on the load of the machine."""
STUCK_S = 120
"""Limit of wall-clock time; waiting for a file or a socket takes no processor time."""
LIMIT_BYTES = 768 << 20
"""Limit of additional address space during a run. Inputs have some kilobytes."""


class TooSlow(BaseException):
    """Not an `Exception`, so that the tested code cannot catch it by accident."""


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    make: Callable[[Random], bytes]
    check: Callable[[bytes], bool]
    """Return whether the input is accepted, not refused; raise if the result is wrong."""
    share: float
    """Share of all inputs; slow targets get fewer."""


def input_of(target: Target, seed: int, number: int) -> bytes:
    return target.make(Random(f"{target.name}/{seed}/{number}"))


@contextmanager
def bounded(limit_bytes: int = LIMIT_BYTES) -> Iterator[None]:
    """Limit the memory of a run of inputs, and raise `TooSlow` when the time limit expires."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (before + limit_bytes, hard))
    old = signal.signal(signal.SIGPROF, _too_slow)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, old)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _too_slow(*_: object) -> None:
    raise TooSlow(f"more than {LIMIT_S:g} s of processor time")


@dataclass(slots=True)
class Outcome:
    accepted: int = 0
    """Number of inputs that were not refused; a target that refuses all of them tests little."""
    failures: list[tuple[int, bytes, str]] = field(default_factory=list)
    """Number, input and error of each failure."""


def run(target: Target, seed: int, numbers: Iterable[int]) -> Outcome:
    outcome = Outcome()
    for number in numbers:
        data = input_of(target, seed, number)
        try:
            outcome.accepted += check(target, data)
        except (Exception, TooSlow) as error:
            outcome.failures.append((number, data, _describe(error)))
    return outcome


def check(target: Target, data: bytes) -> bool:
    """Check an input within the time limits."""
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        return target.check(data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


def _describe(error: BaseException) -> str:
    """Return the error and the last line of our code in its traceback."""
    location, frame = "", error.__traceback__
    while frame is not None:
        path = Path(frame.tb_frame.f_code.co_filename)
        if "site-packages" not in path.parts and path.parts[-2:-1] != ("python3.11",):
            location = f"{path.parent.name}/{path.name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return f"{type(error).__name__} at {location}: {str(error)[:300]}"
