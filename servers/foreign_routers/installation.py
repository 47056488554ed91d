"""Finds the Python environment that a router of another project is installed in, and defines what
it gets to know about the servers behind it.

Each package has an environment of its own. The search order is its environment variable, its
folder in the working directory, and its folder next to Turnstile's sources. The package is not
imported; its version is read from its metadata.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servers.basics.checkout import make_or
from servers.basics.errors import Unavailable
from servers.processes.package_version import PROBE_TIMEOUT_S, package_version
from servers.vllm.plugin.cost_curve import CostCurve


@dataclass(frozen=True, slots=True)
class Deployment:
    urls: tuple[str, ...]
    kv_tokens: int
    """Tokens that fit into the KV memory of each server."""
    costs: CostCurve | None
    """Costs of the servers' model; None if unknown."""
    turn_timeout_s: float
    """How long a turn may take."""


PYTHON = {
    "vllm-router": "TURNSTILE_ROUTERS_PYTHON",
    "sglang-router": "TURNSTILE_SGLANG_ROUTER_PYTHON",
    "ai-dynamo": "TURNSTILE_DYNAMO_PYTHON",
    "ThunderAgent": "TURNSTILE_THUNDERAGENT_PYTHON",
}
"""Environment variables that name the Python of another environment, by package."""
FOLDER = {
    "vllm-router": ".venv-routers",
    "sglang-router": ".venv-sglang-router",
    "ai-dynamo": ".venv-dynamo",
    "ThunderAgent": ".venv-thunderagent",
}
NOT_ON_PYPI = {
    "ThunderAgent": "python3 -m venv .venv-thunderagent && .venv-thunderagent/bin/pip install "
    "git+https://github.com/ThunderAgent-org/ThunderAgent"
}
"""The commands that install packages which `make routers` does not."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class RouterInstallation:
    """A Python environment with the package of a router."""

    python: str
    version: str


def find_installation(package: str) -> RouterInstallation:
    """Return the first environment with the package. Raises Unavailable."""
    pythons = list(_candidates(package))
    for python in pythons:
        version = _version(python, package)
        if version is not None:
            return RouterInstallation(python, version)
    where = f" in {', '.join(pythons)}" if pythons else ""
    raise Unavailable(f"{package} is not installed{where}; {_remedy(package)}")


def _candidates(package: str) -> Iterator[str]:
    if chosen := os.environ.get(PYTHON[package]):
        yield chosen
        return
    for folder in dict.fromkeys((Path.cwd(), ROOT)):
        python = folder / FOLDER[package] / "bin/python"
        if python.exists():
            yield str(python)


def _remedy(package: str) -> str:
    folder = FOLDER[package]
    by_pip = f"python3 -m venv {folder} && {folder}/bin/pip install {package}"
    command = NOT_ON_PYPI.get(package) or make_or("routers", by_pip)
    return (
        f"install it with: {command} (or set {PYTHON[package]} to the Python of an environment "
        "with it)"
    )


def _version(python: str, package: str) -> str | None:
    """Return the version of the package, or None if the environment lacks it."""
    try:
        return package_version(python, package)
    except OSError as error:
        raise Unavailable(
            f"{PYTHON[package]} {python}: {error.strerror}; {_remedy(package)}"
        ) from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{python}: no response within {PROBE_TIMEOUT_S:g} s") from None
