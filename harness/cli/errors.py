"""Turns errors into one line on stderr and an exit code, and SIGTERM into an orderly stop."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from harness.console import complain
from harness.installation import PACKAGES


class Terminated(KeyboardInterrupt):
    """SIGTERM: end as cleanly as on Ctrl-C."""


def terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


@contextmanager
def one_line_errors(on_interrupt: str = "") -> Iterator[None]:
    """What is wrong with a question is one line and exit code 2. A ValueError that another library
    raised, is a bug of ours, and keeps its traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        if full_stdout(error) or not (isinstance(error, OSError) or is_ours(error)):
            raise
        complain(" ".join(str(error).split("\n")))
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stop:
        complain("stopped" + on_interrupt)
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None


def full_stdout(error: BaseException) -> bool:
    """Errors of files have their names."""
    return isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None


def is_ours(error: BaseException) -> bool:
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    root = Path(__file__).parents[2]
    return any(Path(raised_in).is_relative_to(root / package) for package in PACKAGES)
