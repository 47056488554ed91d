"""Finds the Python environment that a router of another project is installed in.

The search order is the project's environment variable, its folder in the working directory, and
that next to Turnstile's sources. The package is not imported; its version is read from its
metadata.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from servers.errors import RouterUnavailable
from servers.processes.package_version import PROBE_TIMEOUT_S, package_version


class Place(NamedTuple):
    """Where a project is looked for."""

    variable: str
    """Environment variable that names a Python."""
    folder: str
    """Folder of a virtual environment."""


PLACES = {
    "vllm-router": Place("TURNSTILE_ROUTERS_PYTHON", ".venv-routers"),
    "sglang-router": Place("TURNSTILE_SGLANG_ROUTER_PYTHON", ".venv-sglang-router"),
}
ROOT = Path(__file__).resolve().parents[2]
REMEDY = "install it with: make routers (or set {} to the Python of an environment with it)"


@dataclass(frozen=True, slots=True)
class RouterInstallation:
    """A Python environment with the package of a router."""

    python: str
    version: str


def find_installation(package: str) -> RouterInstallation:
    """Return the first environment with the package. Raises RouterUnavailable."""
    place = PLACES[package]
    pythons = list(_candidates(place))
    for python in pythons:
        version = _version(python, package, place)
        if version is not None:
            return RouterInstallation(python, version)
    where = f" in {', '.join(pythons)}" if pythons else ""
    remedy = REMEDY.format(place.variable)
    raise RouterUnavailable(f"{package} is not installed{where}; {remedy}")


def _candidates(place: Place) -> Iterator[str]:
    if chosen := os.environ.get(place.variable):
        yield chosen
        return
    for folder in dict.fromkeys((Path.cwd(), ROOT)):
        python = folder / place.folder / "bin/python"
        if python.exists():
            yield str(python)


def _version(python: str, package: str, place: Place) -> str | None:
    """Return the version of the package, or None if the environment lacks it."""
    try:
        return package_version(python, package)
    except OSError as error:
        remedy = REMEDY.format(place.variable)
        raise RouterUnavailable(f"{place.variable} {python}: {error.strerror}; {remedy}") from None
    except subprocess.TimeoutExpired:
        raise RouterUnavailable(f"{python}: no response within {PROBE_TIMEOUT_S:g} s") from None
