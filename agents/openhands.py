"""OpenHands (its SDK, 1.x) as it is, in a Python that has it (`openhands_process` runs there)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agents import openhands_process
from agents.pythons import chosen, prefixes, version_in
from servers.errors import InvalidInput

PYTHON = "TURNSTILE_OPENHANDS_PYTHON"
OURS = ".venv-openhands/bin/python"
REMEDY = (
    "install it: make openhands (needs Python 3.12 or newer); or name a Python that has "
    "openhands-sdk and openhands-tools with --openhands-python"
)


@dataclass(frozen=True, slots=True)
class OpenHands:
    python: str | None = None
    """As asked; None: found."""
    name: str = "openhands"
    ahead: bool = True

    @property
    def _python(self) -> str:
        return chosen(self.python, PYTHON, OURS)

    def check(self) -> str:
        version_in(self._python, "openhands-tools", "openhands.tools", REMEDY)
        version = version_in(self._python, "openhands-sdk", "openhands.sdk", REMEDY)
        if version.partition(".")[0] != "1":
            raise InvalidInput(f"openhands-sdk {version} in {self._python}: needs 1.x; {REMEDY}")
        return version

    def command(self, launch_file: Path) -> list[str]:
        # -I: beside our script lies a file called openhands.
        return [self._python, "-I", openhands_process.__file__, str(launch_file)]

    def readable(self) -> list[Path]:
        return [*prefixes(self._python), Path(openhands_process.__file__)]

    def env(self) -> Mapping[str, str]:
        return {}  # the process sets its own, before it imports the SDK
