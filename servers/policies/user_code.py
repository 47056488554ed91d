"""Names the line of a user's policy or router that raised an exception or does not return.

In: the files and folders of the user's code. Out: text such as "my_policies.py:14: Mine.finished
raised KeyError: 'a'". vLLM loads this file, so it needs the standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

CALL_LIMIT_S = 30.0
"""Longest time that one call of a user's method may take. Calls take microseconds, but the first
may import a library."""
LOOK_S = 0.5


class NeverReturned(BaseException):
    """A call of a user's method took too long. The method itself cannot catch this by accident,
    since it is no `Exception`."""


def is_ours(cls: type) -> bool:
    """Return whether a class is of this package, which has another name in `turnstile-vllm`."""
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def module_root(cls: type) -> Path | None:
    """Return the file or folder of the top-level module that defines a class; None for a class of
    ours."""
    _, *inner = cls.__module__.split(".")
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if is_ours(cls) or file is None:
        return None
    path = Path(file).absolute()
    path = path.parent if path.name == "__init__.py" else path
    return path.parents[len(inner) - 1] if inner else path


def roots_of(cls: type) -> set[Path]:
    """Return the files and folders with the code of a class and of its bases, without ours."""
    return {root for each in cls.__mro__ if (root := module_root(each)) is not None}


def raised_in(error: BaseException, roots: Collection[Path]) -> str | None:
    """Return the line in `roots` that raised the error, the method that an engine had called there,
    and the error; None if none of the code ran."""
    steps = list(_steps(error, roots))
    if not steps:
        return None
    (called, _), (code, line) = steps[0], steps[-1]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{place(code, line)}: {called.co_qualname} raised {what}"


def traceback_in(error: BaseException, roots: Collection[Path]) -> str:
    """Return the traceback of an error without the lines of other code."""
    stack = traceback.extract_tb(error.__traceback__)
    own = [step for step in stack if _is_in(step.filename, roots)]
    lines = [*traceback.format_list(own), *traceback.format_exception_only(error)]
    return "Traceback (most recent call last):\n" + "".join(lines)


@contextmanager
def call_limit(roots: Collection[Path], limit_s: float | None = None) -> Iterator[None]:
    """Raise NeverReturned in a call of code in `roots` that does not return within the limit. Only
    the main thread can be interrupted so; in others, there is no limit."""
    if not roots or threading.current_thread() is not threading.main_thread():
        yield
        return
    most_s = CALL_LIMIT_S if limit_s is None else limit_s
    look_s = min(LOOK_S, most_s / 2)
    last: FrameType | None = None
    lasts_s = 0.0

    def look(_number: int, frame: FrameType | None) -> None:
        """Sums up intervals instead of reading a clock, which goes on while the process stops."""
        nonlocal last, lasts_s
        own = [f for f in _stack(frame) if _is_in(f.f_code.co_filename, roots)]
        call = own[-1] if own else None
        lasts_s = lasts_s + look_s if call is last else 0.0
        last = call
        if call is not None and lasts_s >= most_s:
            where = place(own[0].f_code, own[0].f_lineno)
            raise NeverReturned(
                f"{where}: {call.f_code.co_qualname} has not returned after {most_s:g} s; its loop "
                "or wait has no end"
            )

    handler = signal.signal(signal.SIGALRM, look)
    started_s = time.monotonic()
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, look_s, look_s)
    try:
        yield
    finally:
        if left_s:  # another timer of this process goes on
            left_s = max(left_s - (time.monotonic() - started_s), 0.001)
        signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)
        signal.signal(signal.SIGALRM, handler)


def _stack(frame: FrameType | None) -> Iterable[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _steps(error: BaseException, roots: Collection[Path]) -> Iterator[tuple[CodeType, int]]:
    step = error.__traceback__
    while step is not None:
        if _is_in(step.tb_frame.f_code.co_filename, roots):
            yield step.tb_frame.f_code, step.tb_lineno
        step = step.tb_next


def _is_in(file: str, roots: Collection[Path]) -> bool:
    path = Path(file).absolute()
    return any(path == root or root in path.parents for root in roots)


def place(code: CodeType, line: int) -> str:
    """Return the file, relative to the working directory if it is in it, and the line."""
    path = Path(code.co_filename).absolute()
    here = Path(os.getcwd())
    return f"{path.relative_to(here) if here in path.parents else path}:{line}"
