"""Call `bench` in the process of the tests, which saves half a second per call."""

from __future__ import annotations

import functools
import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

import typer.main

from harness.cli.main import main
from harness.cluster.connection import signals_kept

_command_of = functools.cache(typer.main.get_command)
"""Typer takes longer to build a command than most commands in tests take."""


def bench(*arguments: str) -> tuple[int, str, str]:
    """Run a command as its console script does; return its exit code, stdout and stderr."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code = 0
    built = mock.patch.object(typer.main, "get_command", _command_of)
    with redirect_stdout(out), redirect_stderr(err), _arguments(arguments), signals_kept(), built:
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return code, _text(out), _text(err)


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def _arguments(arguments: tuple[str, ...]) -> mock._patch[list[str]]:
    return mock.patch.object(sys, "argv", ["bench", *arguments])
