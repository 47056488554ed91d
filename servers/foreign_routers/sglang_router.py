"""The command line of sglang-router (the README of its package on PyPI, version 0.3.2).

Retries, circuit breakers and the parameters of its policies are its defaults. It knows a program by
the header `X-SMG-Routing-Key`, which only its policy `manual` uses.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

from servers.foreign_routers.installation import Deployment
from servers.processes.port import request

MODULE = "sglang_router.launch_router"
START_TIMEOUT_S = 60
"""How long it tries to reach a server."""
PREFIX = re.compile(r"^[\d-]+ [\d:]+ +[A-Z]+ (\S+: )?\S+: \S+:\d+: ")
"""Time, level, request, module and source of a message."""
ERROR = re.compile(r"\w*(Error|Exception|error): |Exception: | ERROR |^Error ")


def command(
    python: str, policy: str, deployment: Deployment, port: int, metrics_port: int
) -> list[str]:
    flags: list[object] = [
        *("--host", "127.0.0.1", "--port", port),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", metrics_port),
        *("--worker-urls", *deployment.urls),
        *("--policy", policy),
        *("--request-timeout-secs", math.ceil(deployment.turn_timeout_s)),
        *("--worker-startup-timeout-secs", START_TIMEOUT_S, "--worker-startup-check-interval", 1),
        *("--log-level", "warn"),  # otherwise two lines for each turn
    ]
    return [python, "-m", MODULE, *map(str, flags)]


def is_ready(port: int, deployment: Deployment) -> bool:
    """Return whether it has found all its servers. It says that it is healthy before that."""
    status, body = request(port, "/readiness", timeout_s=2.0)
    return status == 200 and json.loads(body)["healthy_workers"] == len(deployment.urls)


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without proxies, through which the servers cannot be reached."""
    return {name: value for name, value in inherited.items() if not name.lower().endswith("_proxy")}


def failure_cause(lines: Sequence[str]) -> str:
    """Return the last line of the log with an error, or else its last line."""
    errors = [line for line in lines if ERROR.search(line) and not line.startswith(" ")]
    return PREFIX.sub("", (errors or list(lines) or ["its log has no message"])[-1])
