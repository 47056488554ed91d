"""Pythons of other environments: what they have, and what a process of theirs reads."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from servers.errors import InvalidInput

LOOK_WITHIN_S = 60.0
_LOOK = """
import importlib.metadata, importlib.util, json, sys
try:
    version = importlib.metadata.version(sys.argv[1])
except importlib.metadata.PackageNotFoundError:
    version = None
there = importlib.util.find_spec(sys.argv[2].partition(".")[0]) is not None
print(json.dumps({"version": version if there else None, "python": list(sys.version_info[:2])}))
"""
_PREFIXES = """
import json, sys
print(json.dumps(sorted({sys.prefix, sys.base_prefix, sys.exec_prefix})))
"""
_YAML = """
import json, sys, yaml
try:
    found = yaml.safe_load(open(sys.argv[1], "rb").read())
    wrong = None if isinstance(found, dict) else f"holds no settings, but a {type(found).__name__}"
except (yaml.YAMLError, ValueError, RecursionError) as error:
    wrong = " ".join(str(error).split())
print(json.dumps(wrong))
"""


def chosen(asked: str | None, variable: str, ours: str) -> str:
    """The one asked for, else the environment's, else ours in this folder or in our checkout."""
    checkout = Path(__file__).parent.parent
    places = [Path(ours).absolute(), checkout / ours]
    found = next((place for place in places if place.is_file()), places[0])
    return asked or os.environ.get(variable) or str(found)


def version_in(python: str, distribution: str, module: str, remedy: str) -> str:
    """Of a distribution in that environment. Raises a ValueError in one line, with the remedy."""
    if not Path(python).is_file():
        raise InvalidInput(f"{distribution}: no Python at {python}; {remedy}")
    found: dict[str, Any] = _ask(python, _LOOK, distribution, module)
    if found["version"] is None:
        raise InvalidInput(f"{distribution} is not in {python}; {remedy}")
    return str(found["version"])


def prefixes(python: str) -> list[Path]:
    """Folders that its processes read: the environment's and its base's."""
    return [Path(prefix) for prefix in _ask(python, _PREFIXES)]


def wrong_yaml(python: str, file: Path) -> str | None:
    """Why the file gives no settings, read by the library of that environment."""
    found: str | None = _ask(python, _YAML, str(file))
    return found


def _ask(python: str, code: str, *args: str) -> Any:
    try:
        said = subprocess.run(  # noqa: S603
            [python, "-I", "-c", code, *args],
            capture_output=True,
            text=True,
            timeout=LOOK_WITHIN_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidInput(f"{python}: cannot be run ({error})") from None
    return json.loads(said.stdout)
