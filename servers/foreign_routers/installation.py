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
from servers.processes.environments import Installation, package_version, pythons
from servers.routing import FOREIGN
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


def find_installation(project: str) -> Installation:
    """Return the first environment with the package of a project. Raises Unavailable."""
    package, environment, *_, repository = FOREIGN[project]
    folder = f".venv-{environment}"
    variable = f"TURNSTILE_{environment.upper().replace('-', '_')}_PYTHON"
    by_pip = f"python3 -m venv {folder} && {folder}/bin/pip install "
    by_make = make_or("routers", by_pip + package)
    command = f"{by_pip}git+https://github.com/{repository}" if repository else by_make
    remedy = (
        f"install it with: {command} (or set {variable} to the Python of an environment with it)"
    )
    found = list(pythons(os.environ.get(variable), folder))
    for python in found:
        version = package_version(python, package, variable, remedy)
        if version is not None:
            return Installation(python, version)
    where = f" in {', '.join(found)}" if found else ""
    raise Unavailable(f"{package} is not installed{where}; {remedy}")
