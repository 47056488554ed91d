"""Finds the Python environment that a router of another project is installed in, and defines what
it gets to know about the servers behind it.

Each package has an environment of its own. The search order is its environment variable, its
folder in the working directory, and its folder next to Turnstile's sources. The package is not
imported; its version is read from its metadata.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from servers.basics.checkout import make_or
from servers.basics.errors import Unavailable
from servers.processes.package_version import package_version, pythons
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


@dataclass(frozen=True, slots=True)
class RouterInstallation:
    """A Python environment with the package of a router."""

    python: str
    version: str


def find_installation(package: str) -> RouterInstallation:
    """Return the first environment with the package. Raises Unavailable."""
    variable, remedy = PYTHON[package], _remedy(package)
    found = list(pythons(os.environ.get(variable), FOLDER[package]))
    for python in found:
        version = package_version(python, package, variable, remedy)
        if version is not None:
            return RouterInstallation(python, version)
    where = f" in {', '.join(found)}" if found else ""
    raise Unavailable(f"{package} is not installed{where}; {remedy}")


def _remedy(package: str) -> str:
    folder = FOLDER[package]
    by_pip = f"python3 -m venv {folder} && {folder}/bin/pip install {package}"
    command = NOT_ON_PYPI.get(package) or make_or("routers", by_pip)
    return (
        f"install it with: {command} (or set {PYTHON[package]} to the Python of an environment "
        "with it)"
    )
