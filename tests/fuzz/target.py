"""What is fuzzed, and what one input may take: processor time, and memory for all that it makes.

Input n of a target is drawn from `Random("target/seed/n")`, so that a number is a reproduction.
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
"""Of processor time, so that a busy machine fails no input."""
STUCK_S = 120
"""Of wall-clock time: what waits for a file or a socket takes no processor time."""
LIMIT_BYTES = 768 << 20
"""Of address space beyond what is there when a run begins. Inputs have some kilobytes."""


class TooSlow(BaseException):
    """Not an `Exception`, so that nothing that is tested can pass it over."""


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    make: Callable[[Random], bytes]
    check: Callable[[bytes], bool]
    """Whether the input is taken, not refused. Raises for one that is answered wrongly."""
    share: float
    """Of all inputs: slow ones get less."""


def input_of(target: Target, seed: int, number: int) -> bytes:
    return target.make(Random(f"{target.name}/{seed}/{number}"))


@contextmanager
def bounded(limit_bytes: int = LIMIT_BYTES) -> Iterator[None]:
    """For a run of inputs: memory, and the end of the process where nothing moves."""
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
class Found:
    taken: int = 0
    """Inputs that were no refusals: a target that refuses all tests little."""
    wrong: list[tuple[int, bytes, str]] = field(default_factory=list)
    """Number, input, and what was wrong."""


def run(target: Target, seed: int, numbers: Iterable[int]) -> Found:
    found = Found()
    for number in numbers:
        data = input_of(target, seed, number)
        try:
            found.taken += answered(target, data)
        except (Exception, TooSlow) as error:
            found.wrong.append((number, data, _told(error)))
    return found


def answered(target: Target, data: bytes) -> bool:
    """`check`, within its time."""
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        return target.check(data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


def _told(error: BaseException) -> str:
    """The error, and the last line of ours that it came through."""
    where, frame = "", error.__traceback__
    while frame is not None:
        path = Path(frame.tb_frame.f_code.co_filename)
        if "site-packages" not in path.parts and path.parts[-2:-1] != ("python3.11",):
            where = f"{path.parent.name}/{path.name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return f"{type(error).__name__} at {where}: {str(error)[:300]}"
