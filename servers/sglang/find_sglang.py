"""Finds the Python environment that SGLang is installed in.

The search order is TURNSTILE_SGLANG_PYTHON, the running interpreter, `.venv-sglang` in the working
directory, and that next to Turnstile's sources. SGLang is not imported.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servers.basics.errors import NotInstalled, Unavailable
from servers.processes.package_version import PROBE_TIMEOUT_S, package_version

VARIABLE = "TURNSTILE_SGLANG_PYTHON"
ROOT = Path(__file__).resolve().parents[2]
OLDEST = (0, 5, 23)
"""The version whose code was read. It is the first that is known to have every flag."""
REMEDY = (
    "on a machine with a GPU, get it with: python3 -m venv .venv-sglang && "
    f".venv-sglang/bin/pip install sglang (or set {VARIABLE} to the Python of an environment)"
)


@dataclass(frozen=True, slots=True)
class SglangInstallation:
    """A Python environment with SGLang."""

    python: str
    version: str


def find_sglang() -> SglangInstallation:
    """Return the first installation. Raises Unavailable, with the command to install it."""
    python = next(_candidates(), None)
    if python is None:
        raise NotInstalled(f"SGLang is not installed; {REMEDY}")
    try:
        version = package_version(python, "sglang")
    except OSError as error:
        raise Unavailable(f"{VARIABLE} {python}: {error.strerror}; {REMEDY}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{python}: no response within {PROBE_TIMEOUT_S:g} s") from None
    if version is None:
        raise NotInstalled(f"{python} has no SGLang; {REMEDY}")
    if not _new_enough(version):
        oldest = ".".join(map(str, OLDEST))
        raise Unavailable(
            f"{python} has SGLang {version}, but Turnstile needs {oldest} or newer; {REMEDY}"
        )
    return SglangInstallation(python, version)


def _candidates() -> Iterator[str]:
    if chosen := os.environ.get(VARIABLE):
        yield chosen
        return
    if importlib.util.find_spec("sglang") is not None:
        yield sys.executable
    for folder in dict.fromkeys((Path.cwd(), ROOT)):
        python = folder / ".venv-sglang/bin/python"
        if python.exists():
            yield str(python)


def _new_enough(version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return numbers is not None and tuple(map(int, numbers.groups())) >= OLDEST
