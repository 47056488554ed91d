"""Runs OpenHands (its SDK, 1.x), unmodified, in the Python environment that it is installed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agents import openhands_process
from agents.pythons import find_python, installed_version, prefixes
from servers.basics.errors import InvalidInput

PYTHON = "TURNSTILE_OPENHANDS_PYTHON"
ENVIRONMENT = ".venv-openhands"
REMEDY = (
    "install it: make openhands (needs Python 3.12 or newer); or give a Python with openhands-sdk "
    "and openhands-tools with --agent-python"
)


@dataclass(frozen=True, slots=True)
class OpenHands:
    python: str | None = None
    """None to search for it."""
    name: str = "openhands"
    boots_early: bool = True

    @property
    def _python(self) -> str:
        return find_python(self.python, PYTHON, ENVIRONMENT)

    def check(self) -> str:
        installed_version(self._python, "openhands-tools", "openhands.tools", REMEDY)
        version = installed_version(self._python, "openhands-sdk", "openhands.sdk", REMEDY)
        if version.partition(".")[0] != "1":
            raise InvalidInput(f"openhands-sdk {version} in {self._python}: needs 1.x; {REMEDY}")
        return version

    def command(self, launch_file: Path) -> list[str]:
        # With -I, our own openhands.py next to the script is not on the path.
        return [self._python, "-I", openhands_process.__file__, str(launch_file)]

    def readable(self) -> list[Path]:
        return [*prefixes(self._python), Path(openhands_process.__file__)]

    def env(self) -> Mapping[str, str]:
        return {}  # the process sets its variables before it imports the SDK
