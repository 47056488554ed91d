"""What the launcher tells the plug-in, through the environment of the server's process.

- `TURNSTILE_POLICY`: a name of `servers.variants`, or a policy of your own as my_module:MyPolicy.
- `TURNSTILE_COSTS`: path of a JSON file `{"base_s", "linear_s", "quadratic_s",
  "reload_s_per_token", "step_tokens"}`. Prefilling n tokens takes base + linear·n + quadratic·n²
  seconds; `reload_s_per_token` is null without an offload tier.
- `TURNSTILE_EVENTS`: path of the JSONL that engine events are appended to; may be absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from servers.policies.base import Costs, Oracle, Policy
from servers.variants import make_policy, variants


class BadEnvironment(ValueError):
    """The plug-in cannot start with this; the message says what to set."""


def read_policy(environment: Mapping[str, str]) -> Policy:
    spec = environment.get("TURNSTILE_POLICY", "")
    if not spec:
        raise BadEnvironment(
            "TURNSTILE_POLICY is not set: name a policy (fcfs, continuum, …), or start the server "
            "with `bench serve --policy …`"
        )
    chosen = variants(spec)
    if len(chosen) != 1:
        raise BadEnvironment(f"TURNSTILE_POLICY is {spec}: a server runs one policy, name one")
    if issubclass(chosen[0].policy, Oracle):
        raise BadEnvironment(
            f"TURNSTILE_POLICY is {spec}: it knows the trace's future, so it runs in virtual time "
            "only (--engine sim)"
        )
    return make_policy(chosen[0], read_costs(environment))


def read_costs(environment: Mapping[str, str]) -> Costs:
    path = environment.get("TURNSTILE_COSTS", "")
    if not path:
        raise BadEnvironment("TURNSTILE_COSTS is not set: give the path of a JSON file of costs")
    try:
        said = json.loads(Path(path).read_text())
        base_s, linear_s = float(said["base_s"]), float(said["linear_s"])
        quadratic_s, step_tokens = float(said["quadratic_s"]), int(said["step_tokens"])
        reload_s = said["reload_s_per_token"]
        reload_s = None if reload_s is None else float(reload_s)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise BadEnvironment(
            f"TURNSTILE_COSTS is {path}: {type(error).__name__}: {error}; it must be a JSON object "
            "with base_s, linear_s, quadratic_s, reload_s_per_token (or null) and step_tokens"
        ) from None

    def prefill_s(tokens: int) -> float:
        return base_s + linear_s * tokens + quadratic_s * tokens * tokens

    def reload(tokens: int) -> float:
        return (reload_s or 0.0) * tokens

    return Costs(prefill_s, None if reload_s is None else reload, step_tokens)
