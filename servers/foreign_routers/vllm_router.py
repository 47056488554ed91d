"""The command line of vllm-router (github.com/vllm-project/router, docs/program_scheduling.md).

Retries, circuit breakers and the parameters of its policies are its defaults. What depends on the
deployment is set: time limits, and for program scheduling the capacity of a server and the costs of
its model, which by default are another machine's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

from servers.basics.json_object import JsonObject
from servers.foreign_routers.installation import Deployment
from servers.processes.port import request

MODULE = "vllm_router.launch_router"
PROGRAM_SCHEDULING = "program_scheduling"
REQUESTS_OUTSIDE_PROGRAMS = "consistent_hash"
"""The policy for requests without a program under program scheduling, as in its documentation."""
QUEUE_TIMEOUT_S = 600.0
"""Its default for how long a turn may be held back. A shorter time is refused if it is below 300 s,
after which a program resumes in any case; our client gives up on a turn by itself."""
NOT_PASSED = ("API_KEY_VALIDATION_URLS",)
"""With this variable the router would ask other machines about each key."""
PREFIX = re.compile(r"^[\d-]+ [\d:]+ +[A-Z]+ \S+: \S+:\d+: ")
"""Time, level, module and source of a message."""
ERROR = re.compile(r"\w*(Error|Exception|error): |\bERROR\b|^Error ")


def command(
    python: str, policy: str, deployment: Deployment, port: int, metrics_port: int
) -> list[str]:
    scheduled = policy == PROGRAM_SCHEDULING
    flags: list[object] = [
        *("--host", "127.0.0.1", "--port", port),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", metrics_port),
        *("--worker-urls", *deployment.urls),
        *("--policy", REQUESTS_OUTSIDE_PROGRAMS if scheduled else policy),
        *("--request-timeout-secs", math.ceil(deployment.turn_timeout_s)),
        *("--worker-startup-check-interval", 1),
    ]
    if scheduled:
        settings = json.dumps(program_scheduling(deployment))
        flags += ["--enable-program-scheduling", "--program-scheduling-config-json", settings]
    return [python, "-m", MODULE, *map(str, flags)]


def program_scheduling(deployment: Deployment) -> JsonObject:
    """Return the settings of program scheduling, with times in seconds and costs per 1,000 tokens.

    `auto` takes a program's identity from the headers of its turns. vLLM 0.32 refuses requests with
    the other identity that the router knows, `vllm_xargs.agentic_context`, since its values must be
    numbers, strings or lists.
    """
    settings: JsonObject = {
        "program_scheduling_enable_key": "auto",
        "global_queue": True,
        "queue_timeout_seconds": max(deployment.turn_timeout_s, QUEUE_TIMEOUT_S),
        "token_capacity_per_target": deployment.kv_tokens,
    }
    if (costs := deployment.costs) is None:
        return settings
    settings["prefill_cost_model"] = {
        "intercept_seconds": costs.base_s,
        "linear_seconds_per_1k_tokens": costs.linear_s * 1e3,
        "quadratic_seconds_per_1k_tokens_squared": costs.quadratic_s * 1e6,
    }
    step = costs.decode_step
    if step is not None and step.base_s > 0:
        settings["decode_throughput_model"] = {
            "fixed_step_seconds": step.base_s,
            "batch_step_seconds_per_request": step.turn_s,
            "context_step_seconds_per_token": step.context_token_s,
        }
    return settings


def is_ready(port: int, _deployment: Deployment) -> bool:
    """Return whether a router that was started is healthy, as it is when its servers are."""
    return request(port, "/health", timeout_s=2.0)[0] == 200


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without proxies, through which the servers cannot be reached."""
    return {
        name: value
        for name, value in inherited.items()
        if not name.lower().endswith("_proxy") and name not in NOT_PASSED
    }


def failure_cause(lines: Sequence[str]) -> str:
    """Return the last line of the log with an error, or else its last line. It prints the progress
    of its start as DEBUG at every log level."""
    messages = [line for line in lines if not line.startswith((" ", "DEBUG: "))]
    errors = [line for line in messages if ERROR.search(line)]
    return PREFIX.sub("", (errors or messages or ["its log has no message"])[-1])
