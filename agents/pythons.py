"""Finds the Python environments of agents, and runs short scripts in them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from servers.basics.errors import InvalidInput
from servers.processes.environments import last_line, pythons, run_python

OPTION, REMEDY = "--agent-python", "give the Python of an environment with the agent"
_VERSION_SCRIPT = """
import importlib.metadata, importlib.util, json, sys
try:
    version = importlib.metadata.version(sys.argv[1])
except importlib.metadata.PackageNotFoundError:
    version = None
importable = importlib.util.find_spec(sys.argv[2].partition(".")[0]) is not None
print(json.dumps(version if importable else None))
"""
_PREFIXES_SCRIPT = """
import json, sys
print(json.dumps(sorted({sys.prefix, sys.base_prefix, sys.exec_prefix})))
"""
_YAML_SCRIPT = """
import json, sys, yaml
try:
    config = yaml.safe_load(open(sys.argv[1], "rb").read())
    reason = None if isinstance(config, dict) else f"{type(config).__name__}, not a mapping"
except (yaml.YAMLError, ValueError, RecursionError) as error:
    reason = " ".join(str(error).split())
print(json.dumps(reason))
"""


def find_python(given: str | None, variable: str, environment: str) -> str:
    """Return the given path, the variable's, or the environment's, whether it exists or not."""
    chosen = given or os.environ.get(variable)
    return next(pythons(chosen, environment), str(Path(environment, "bin/python").absolute()))


def installed_version(python: str, distribution: str, module: str, remedy: str) -> str:
    """Return the version of a distribution. Raises InvalidInput if it is not installed."""
    if not Path(python).is_file():
        raise InvalidInput(f"{distribution}: no Python at {python}; {remedy}")
    version: str | None = _run(python, _VERSION_SCRIPT, distribution, module)
    if version is None:
        raise InvalidInput(f"{distribution} is not installed in {python}; {remedy}")
    return version


def prefixes(python: str) -> list[Path]:
    """Return the folders of the environment and of the Python that it is based on."""
    return [Path(prefix) for prefix in _run(python, _PREFIXES_SCRIPT)]


def yaml_error(python: str, file: Path) -> str | None:
    """Return the reason why a file is not a YAML mapping, or None if it is. Uses the environment's
    YAML library."""
    reason: str | None = _run(python, _YAML_SCRIPT, str(file))
    return reason


def _run(python: str, script: str, *arguments: str) -> Any:
    process = run_python(python, "-I", "-c", script, *arguments, option=OPTION, remedy=REMEDY)
    if process.returncode:
        raise InvalidInput(f"{OPTION} {python}: {last_line(process)}; {REMEDY}")
    return json.loads(process.stdout)
