"""Call `bench` in the process of the tests, which saves half a second per call."""

from __future__ import annotations

from typer.testing import CliRunner

from harness.cli.main import app


def bench(*arguments: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr
