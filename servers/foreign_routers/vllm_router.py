"""The command line of vllm-router (github.com/vllm-project/router, docs/program_scheduling.md).

Retries, circuit breakers and the parameters of its policies are its defaults. What depends on the
deployment is set: time limits, and for program scheduling the capacity of a server and the costs of
its model, which by default are another machine's.
"""

from __future__ import annotations

import json
import math

from servers.basics.json_object import JsonObject
from servers.foreign_routers.installation import Deployment
from servers.foreign_routers.projects import Project, on_loopback

PROGRAM_SCHEDULING = "program_scheduling"
REQUESTS_OUTSIDE_PROGRAMS = "consistent_hash"
"""The policy for requests without a program under program scheduling, as in its documentation."""
QUEUE_TIMEOUT_S = 600.0
"""Its default for how long a turn may be held back. A shorter time is refused if it is below 300 s,
after which a program resumes in any case; our client gives up on a turn by itself."""


def _flags(policy: str, deployment: Deployment, port: int, metrics_port: int) -> list[object]:
    scheduled = policy == PROGRAM_SCHEDULING
    flags = [
        *on_loopback(port, metrics_port),
        *("--worker-urls", *deployment.urls),
        *("--policy", REQUESTS_OUTSIDE_PROGRAMS if scheduled else policy),
        *("--request-timeout-secs", math.ceil(deployment.turn_timeout_s)),
        *("--worker-startup-check-interval", 1),
    ]
    if scheduled:
        settings = json.dumps(program_scheduling(deployment))
        flags += ["--enable-program-scheduling", "--program-scheduling-config-json", settings]
    return flags


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


VLLM_ROUTER = Project(
    "vllm_router.launch_router",
    _flags,
    # With this variable the router would ask other machines about each key.
    not_passed=("API_KEY_VALIDATION_URLS",),
)
