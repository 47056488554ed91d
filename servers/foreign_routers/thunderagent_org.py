"""The command line of ThunderAgent's own router (github.com/ThunderAgent-org/ThunderAgent, at
a7eef77).

All parameters are its defaults. It takes chats only, knows a program by `program_id` in the body,
and asks each vLLM for the size of its KV memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from servers.foreign_routers import sglang_router
from servers.foreign_routers.installation import Deployment
from servers.processes.port import request

MODULE = "ThunderAgent"


def command(
    python: str, policy: str, deployment: Deployment, port: int, _metrics_port: int
) -> list[str]:
    flags = ["--host", "127.0.0.1", "--port", str(port), "--router", policy]
    return [python, "-m", MODULE, *flags, "--backends", ",".join(deployment.urls)]


def is_ready(port: int, _deployment: Deployment) -> bool:
    return request(port, "/health", timeout_s=2.0)[0] == 200


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without proxies, through which the servers cannot be reached."""
    return sglang_router.environment(inherited)


def failure_cause(lines: Sequence[str]) -> str:
    """Return the last line of the log with an error, or else its last line."""
    return sglang_router.failure_cause(lines)
