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
    package: str
    command: str = "make routers"
    """How it is installed."""


PLACES = {
    "vllm-router": Place("TURNSTILE_ROUTERS_PYTHON", ".venv-routers", "vllm-router"),
    "sglang-router": Place(
        "TURNSTILE_SGLANG_ROUTER_PYTHON", ".venv-sglang-router", "sglang-router"
    ),
    "thunderagent-org": Place(
        "TURNSTILE_THUNDERAGENT_PYTHON",
        ".venv-thunderagent",
        "ThunderAgent",
        "python3 -m venv .venv-thunderagent && .venv-thunderagent/bin/pip install "
        "git+https://github.com/ThunderAgent-org/ThunderAgent",
    ),
}
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class RouterInstallation:
    """A Python environment with the package of a router."""

    python: str
    version: str


def find_installation(project: str) -> RouterInstallation:
    """Return the first environment with the project's package. Raises RouterUnavailable."""
    place = PLACES[project]
    pythons = list(_candidates(place))
    for python in pythons:
        version = _version(python, place)
        if version is not None:
            return RouterInstallation(python, version)
    where = f" in {', '.join(pythons)}" if pythons else ""
    raise RouterUnavailable(f"{place.package} is not installed{where}; {_remedy(place)}")


def _remedy(place: Place) -> str:
    return (
        f"install it with: {place.command} (or set {place.variable} to the Python of an "
        "environment with it)"
    )


def _candidates(place: Place) -> Iterator[str]:
    if chosen := os.environ.get(place.variable):
        yield chosen
        return
    for folder in dict.fromkeys((Path.cwd(), ROOT)):
        python = folder / place.folder / "bin/python"
        if python.exists():
            yield str(python)


def _version(python: str, place: Place) -> str | None:
    """Return the version of the package, or None if the environment lacks it."""
    try:
        return package_version(python, place.package)
    except OSError as error:
        raise RouterUnavailable(
            f"{place.variable} {python}: {error.strerror}; {_remedy(place)}"
        ) from None
    except subprocess.TimeoutExpired:
        raise RouterUnavailable(f"{python}: no response within {PROBE_TIMEOUT_S:g} s") from None
