"""Finds packages in other Python environments, without importing them, and runs scripts there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servers.basics.checkout import ROOT
from servers.basics.errors import Unavailable

VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Installation:
    """A Python environment with a package."""

    python: str
    version: str


def pythons(chosen: str | None, *environments: str, module: str | None = None) -> Iterator[str]:
    """Yield only the chosen Python, if there is one; else the running one, if it has the module,
    and those of the environments in the working directory and next to Turnstile's sources."""
    if chosen:
        yield chosen
        return
    if module and importlib.util.find_spec(module) is not None:
        yield sys.executable
    for environment in environments:
        for folder in dict.fromkeys((Path.cwd(), ROOT)):
            python = folder / environment / "bin/python"
            if python.exists():
                yield str(python)


def run_python(
    python: str, *arguments: str, option: str, remedy: str
) -> subprocess.CompletedProcess[str]:
    """Run a short script in another environment, which may fail. Raises Unavailable, which names
    the option that chooses the Python, if it cannot be started or does not respond."""
    try:
        return subprocess.run(  # noqa: S603
            [python, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except OSError as error:
        raise Unavailable(f"{option} {python}: {error.strerror}; {remedy}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{option} {python}: no response within {TIMEOUT_S:g} s") from None


def last_line(process: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of stderr, which says why a script failed."""
    return (process.stderr.strip().splitlines() or ["no output"])[-1]


def package_version(python: str, package: str, variable: str, remedy: str) -> str | None:
    """Return the version, or None if the environment lacks the package. Raises Unavailable, which
    names the variable and the remedy, if the Python cannot be started or does not respond."""
    process = run_python(python, "-c", VERSION, package, option=variable, remedy=remedy)
    return process.stdout.strip() if process.returncode == 0 else None


def at_least(oldest: tuple[int, ...], version: str) -> bool:
    numbers = re.match(r"\d+(\.\d+)+", version)
    return numbers is not None and tuple(map(int, numbers[0].split("."))) >= oldest
