"""mini-swe-agent (2.x) as it is, in a Python that has it (`mini_swe_agent_process` runs there)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agents import mini_swe_agent_process
from agents.pythons import chosen, prefixes, version_in, wrong_yaml
from servers.errors import InvalidInput
from traces.lenient import one_line

PYTHON = "TURNSTILE_AGENT_PYTHON"
OURS = ".venv-agents/bin/python"
REMEDY = (
    "install it: python3 -m venv .venv-agents && .venv-agents/bin/pip install mini-swe-agent mcp; "
    "or name a Python that has it with --agent-python"
)


@dataclass(frozen=True, slots=True)
class MiniSweAgent:
    python: str | None = None
    """As asked; None: found."""
    name: str = "mini-swe-agent"
    ahead: bool = True

    @property
    def _python(self) -> str:
        return chosen(self.python, PYTHON, OURS)

    def check(self) -> str:
        version = version_in(self._python, "mini-swe-agent", "minisweagent.agents.default", REMEDY)
        if int(version.split(".")[0]) < 2:
            raise InvalidInput(
                f"mini-swe-agent {version} in {self._python}: needs 2 or newer; {REMEDY}"
            )
        return version

    def check_config(self, file: Path) -> None:
        """Raises a ValueError in one line for settings that cannot be read."""
        if (why := wrong_yaml(self._python, file)) is not None:
            raise InvalidInput(one_line(f"--agent-config {file}: {why}"))

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
            # A turn that failed has failed its job already.
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
        }
