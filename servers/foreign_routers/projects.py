"""The routers of other projects that run as one process, and how each is started.

Retries, circuit breakers and the parameters of their policies are their defaults. Sources: for
sglang-router the README of its package on PyPI (version 0.3.2), for ThunderAgent's own router
github.com/ThunderAgent-org/ThunderAgent at a7eef77.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from servers.foreign_routers.installation import Deployment
from servers.processes.port import request
from servers.processes.server import last_error

START_TIMEOUT_S = 60
"""How long sglang-router tries to reach a server."""
ERROR = re.compile(r"\w*(Error|Exception|error): |\bERROR\b|^Error ")
PREFIX = re.compile(r"^[\d-]+ [\d:]+ +[A-Z]+ (\S+: )?\S+: \S+:\d+: ")
"""Time, level, request (sglang-router), module and source of a message."""


def is_healthy(port: int, _deployment: Deployment) -> bool:
    """Return whether a router that was started is healthy, as it is when its servers are."""
    return request(port, "/health", timeout_s=2.0)[0] == 200


@dataclass(frozen=True, slots=True)
class Project:
    module: str
    flags: Callable[[str, Deployment, int, int], list[object]]
    """Returns the flags for a policy, the servers, a port, and a port for metrics."""
    is_ready: Callable[[int, Deployment], bool] = is_healthy
    """Whether the router at this port can take turns. May raise one of `UNUSABLE` if it cannot."""
    not_passed: tuple[str, ...] = ()
    """Environment variables that it must not inherit."""

    def command(
        self, python: str, policy: str, deployment: Deployment, port: int, metrics_port: int
    ) -> list[str]:
        flags = self.flags(policy, deployment, port, metrics_port)
        return [python, "-m", self.module, *map(str, flags)]

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment without proxies, through which the servers cannot be reached."""
        return {
            name: value
            for name, value in inherited.items()
            if not name.lower().endswith("_proxy") and name not in self.not_passed
        }

    def failure_cause(self, lines: Sequence[str]) -> str:
        return last_error(lines, ERROR, PREFIX)


def on_loopback(port: int, metrics_port: int) -> list[object]:
    return [
        *("--host", "127.0.0.1", "--port", port),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", metrics_port),
    ]


def _sglang_flags(
    policy: str, deployment: Deployment, port: int, metrics_port: int
) -> list[object]:
    return [
        *on_loopback(port, metrics_port),
        *("--worker-urls", *deployment.urls),
        *("--policy", policy),
        *("--request-timeout-secs", math.ceil(deployment.turn_timeout_s)),
        *("--worker-startup-timeout-secs", START_TIMEOUT_S, "--worker-startup-check-interval", 1),
        *("--log-level", "warn"),  # otherwise two lines for each turn
    ]


def _has_found_all(port: int, deployment: Deployment) -> bool:
    """Return whether it has found all its servers. It says that it is healthy before that."""
    status, body = request(port, "/readiness", timeout_s=2.0)
    return status == 200 and json.loads(body)["healthy_workers"] == len(deployment.urls)


SGLANG_ROUTER = Project("sglang_router.launch_router", _sglang_flags, _has_found_all)
"""It knows a program by the header `X-SMG-Routing-Key`, which only its policy `manual` uses."""


def _thunderagent_flags(
    policy: str, deployment: Deployment, port: int, _metrics_port: int
) -> list[object]:
    flags: list[object] = ["--host", "127.0.0.1", "--port", port, "--router", policy]
    return [*flags, "--backends", ",".join(deployment.urls)]


THUNDERAGENT_ORG = Project("ThunderAgent", _thunderagent_flags)
"""It takes chats only, knows a program by `program_id` in the body, and asks each vLLM for the size
of its KV memory."""
