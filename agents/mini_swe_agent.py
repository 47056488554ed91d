"""Runs mini-swe-agent (2.x), unmodified, in the Python environment that it is installed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agents import mini_swe_agent_process
from agents.pythons import find_python, installed_version, prefixes, yaml_error
from servers.basics.errors import InvalidInput
from servers.basics.text import one_line

PYTHON = "TURNSTILE_AGENT_PYTHON"
ENVIRONMENT = ".venv-agents"
REMEDY = (
    "install it: python3 -m venv .venv-agents && .venv-agents/bin/pip install mini-swe-agent mcp; "
    "or give its Python with --agent-python"
)


@dataclass(frozen=True, slots=True)
class MiniSweAgent:
    python: str | None = None
    """None to search for it."""
    name: str = "mini-swe-agent"
    boots_early: bool = True

    @property
    def _python(self) -> str:
        return find_python(self.python, PYTHON, ENVIRONMENT)

    def check(self) -> str:
        version = installed_version(
            self._python, "mini-swe-agent", "minisweagent.agents.default", REMEDY
        )
        if int(version.split(".")[0]) < 2:
            raise InvalidInput(
                f"mini-swe-agent {version} in {self._python}: needs 2 or newer; {REMEDY}"
            )
        return version

    def check_config(self, file: Path) -> None:
        """Raises InvalidInput if the file is not a valid configuration."""
        if (reason := yaml_error(self._python, file)) is not None:
            raise InvalidInput(one_line(f"--agent-config {file}: {reason}"))

    def command(self, launch_file: Path) -> list[str]:
        return [self._python, mini_swe_agent_process.__file__, str(launch_file)]

    def readable(self) -> list[Path]:
        return [*prefixes(self._python), Path(mini_swe_agent_process.__file__)]

    def env(self) -> Mapping[str, str]:
        return {
            "MSWEA_CONFIGURED": "true",
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            # A failed turn fails its job, so a retry cannot help.
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
        }
