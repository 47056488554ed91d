"""Settings of the plug-in, read from the environment variables of the server's process.

- `TURNSTILE_POLICY`: a name of `servers.variants`, or a custom policy as my_module:MyPolicy.
- `TURNSTILE_COSTS`: path of a JSON file `{"base_s", "linear_s", "quadratic_s",
  "reload_s_per_token", "step_tokens"}`. Prefilling n tokens takes base + linear·n + quadratic·n²
  seconds; `reload_s_per_token` is null without an offload tier.
- `TURNSTILE_EVENTS`: path of the JSONL file to which engine events are appended; optional.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from servers.errors import InvalidEnvironment
from servers.policies.base import Costs, Oracle, Policy
from servers.variants import make_policy, variants


def read_policy(environment: Mapping[str, str]) -> Policy:
    spec = environment.get("TURNSTILE_POLICY", "")
    if not spec:
        raise InvalidEnvironment(
            "TURNSTILE_POLICY is not set: name a policy (fcfs, continuum, …), or start the server "
            "with `bench serve --policy …`"
        )
    chosen = variants(spec)
    if len(chosen) != 1:
        raise InvalidEnvironment(f"TURNSTILE_POLICY is {spec}: a server runs one policy; name one")
    if issubclass(chosen[0].policy, Oracle):
        raise InvalidEnvironment(
            f"TURNSTILE_POLICY is {spec}: this policy knows the trace's future, so it runs in "
            "virtual time only (--engine sim)"
        )
    return make_policy(chosen[0], read_costs(environment))


def read_costs(environment: Mapping[str, str]) -> Costs:
    path = environment.get("TURNSTILE_COSTS", "")
    if not path:
        raise InvalidEnvironment(
            "TURNSTILE_COSTS is not set: give the path of a JSON file with costs"
        )
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InvalidEnvironment(
            f"TURNSTILE_COSTS is {path}: {error}; it must be a JSON file"
        ) from None

    def number(name: str) -> float:
        value = data.get(name) if isinstance(data, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidEnvironment(
                f"TURNSTILE_COSTS is {path}: {name} is {value!r}, not a number"
            )
        return value

    base_s, linear_s, quadratic_s = number("base_s"), number("linear_s"), number("quadratic_s")
    step_tokens = int(number("step_tokens"))
    no_tier = isinstance(data, dict) and data.get("reload_s_per_token") is None
    reload_s = 0.0 if no_tier else number("reload_s_per_token")

    def prefill_s(tokens: int) -> float:
        return base_s + linear_s * tokens + quadratic_s * tokens * tokens

    def reload(tokens: int) -> float:
        return reload_s * tokens

    return Costs(prefill_s, None if no_tier else reload, step_tokens)
