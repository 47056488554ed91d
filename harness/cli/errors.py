"""Turns errors into one line on stderr and an exit code, and SIGTERM into an orderly stop."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from harness.console import complain
from servers.errors import InvalidInput, TurnstileError

options_from_file: ContextVar[tuple[Path, Set[str]] | None] = ContextVar("options", default=None)
"""The settings file of the command that runs, and the names of the options that come from it."""


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM; handled like Ctrl-C."""


def terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


@contextmanager
def one_line_errors(on_interrupt: str = "") -> Iterator[None]:
    """Prints an error that Turnstile raised on purpose as one line and exits with code 2. Any other
    exception is a bug and keeps its traceback."""
    try:
        yield
    except (TurnstileError, OSError) as error:
        if full_stdout(error):
            raise
        complain(_named_file(error) + " ".join(str(error).split("\n")))
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stop:
        complain("stopped" + on_interrupt)
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None


def full_stdout(error: BaseException) -> bool:
    """ENOSPC without a file name means that stdout itself is full."""
    return isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None


def _named_file(error: Exception) -> str:
    """The prefix of an error with the settings file, if the invalid option may come from it."""
    source = options_from_file.get()
    if source is None or not isinstance(error, InvalidInput):
        return ""
    path, names = source
    option = re.match(r"--([\w-]+)", str(error))
    return f"{path}: " if option is None or option[1].replace("-", "_") in names else ""
