"""Convert errors to one line on stderr and an exit code, and signals to an exception."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterator, Set
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from harness.console import print_message
from servers.basics.errors import InvalidInput, TurnstileError

options_from_file: ContextVar[tuple[Path, Set[str]] | None] = ContextVar("options", default=None)
"""The settings file of the running command, and the names of the options that it sets."""


class Terminated(KeyboardInterrupt):
    """Raised on the signals that end a process; handled like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated(number)


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code after an interruption, as shells do for a signal."""
    return 128 + (stop.number if isinstance(stop, Terminated) else signal.SIGINT)


@contextmanager
def one_line_errors(on_interrupt: str = "") -> Iterator[None]:
    """Print a TurnstileError or OSError as one line and exit with code 2. Any other exception is a
    bug and keeps its traceback."""
    try:
        yield
    except (TurnstileError, OSError) as error:
        if is_stdout_full(error) or isinstance(error, BrokenPipeError):
            raise
        print_message(_settings_file_prefix(error) + " ".join(str(error).split("\n")))
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stop:
        print_message("stopped" + on_interrupt)
        raise typer.Exit(exit_code(stop)) from None


def is_stdout_full(error: BaseException) -> bool:
    """Return whether stdout is full. An ENOSPC error of any other file names the file."""
    return isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None


def _settings_file_prefix(error: Exception) -> str:
    """Return the settings file as a prefix for the error if the invalid option may come from it."""
    source = options_from_file.get()
    if source is None or not isinstance(error, InvalidInput):
        return ""
    path, names = source
    option = re.match(r"--([\w-]+)", str(error))
    return f"{path}: " if option is None or option[1].replace("-", "_") in names else ""
