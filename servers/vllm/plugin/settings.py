"""Settings of the plug-in, read from the environment variables of the server's process.

- `TURNSTILE_POLICY`: a name of `servers.variants`, or a custom policy as my_module:MyPolicy.
- `TURNSTILE_COSTS`: path of a JSON file `{"base_s", "linear_s", "quadratic_s",
  "reload_s_per_token", "step_tokens", "decode_step": {"base_s", "turn_s", "context_token_s"}}`.
  Prefilling n tokens takes base + linear·n + quadratic·n² seconds; `reload_s_per_token` is null
  without an offload tier. A decode step of n turns with m context tokens in total takes
  base + turn·n + context_token·m seconds; without `decode_step`, policies do not know it.
- `TURNSTILE_EVENTS`: path of the JSONL file to which engine events are appended; optional.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from servers.basics.errors import InvalidInput
from servers.policies.base import Costs, Policy
from servers.variants import make_policy, variants


def read_policy(environment: Mapping[str, str], kv_tokens: int) -> Policy:
    """Return the policy of an engine that holds `kv_tokens` tokens of KV."""
    spec = environment.get("TURNSTILE_POLICY", "")
    if not spec:
        raise InvalidInput(
            "TURNSTILE_POLICY is not set: name a policy (fcfs, continuum, …), or start the server "
            "with `bench serve --policy …`"
        )
    chosen = variants(spec)
    if len(chosen) != 1:
        raise InvalidInput(f"TURNSTILE_POLICY is {spec}: a server runs one policy; name one")
    if chosen[0].impossible:
        raise InvalidInput(
            f"TURNSTILE_POLICY is {spec}: {chosen[0].impossible}, so it runs in virtual time only "
            "(--engine sim)"
        )
    if chosen[0].limits:
        raise InvalidInput(
            f"TURNSTILE_POLICY is {spec}: {chosen[0].limits[0][0]} is a setting of vLLM itself; "
            "remove it, and start vLLM with its flag, or start the server with `bench serve`"
        )
    return make_policy(chosen[0], _read_costs(environment, kv_tokens))


def _read_costs(environment: Mapping[str, str], kv_tokens: int) -> Costs:
    path = environment.get("TURNSTILE_COSTS", "")
    if not path:
        raise InvalidInput("TURNSTILE_COSTS is not set: give the path of a JSON file with costs")
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"TURNSTILE_COSTS is {path}: {error}; it must be a JSON file") from None

    def number(*names: str) -> float:
        value = _get(data, *names)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput(
                f"TURNSTILE_COSTS is {path}: {'.'.join(names)} is {value!r}, not a number"
            )
        return value

    base_s, linear_s, quadratic_s = number("base_s"), number("linear_s"), number("quadratic_s")
    step_tokens = int(number("step_tokens"))
    no_tier = _get(data, "reload_s_per_token") is None
    reload_s = 0.0 if no_tier else number("reload_s_per_token")
    no_decodes = _get(data, "decode_step") is None
    step_s, turn_s, context_token_s = (
        0.0 if no_decodes else number("decode_step", name)
        for name in ("base_s", "turn_s", "context_token_s")
    )

    def prefill_s(tokens: int) -> float:
        return base_s + linear_s * tokens + quadratic_s * tokens * tokens

    def reload(tokens: int) -> float:
        return reload_s * tokens

    def decode_step_s(turns: int, context_tokens: int) -> float:
        return step_s + turn_s * turns + context_token_s * context_tokens

    return Costs(
        prefill_s,
        None if no_tier else reload,
        step_tokens,
        kv_tokens,
        None if no_decodes else decode_step_s,
    )


def _get(data: object, *names: str) -> object:
    """Return the value at a path of names in a JSON value; None if it is absent."""
    for name in names:
        data = data.get(name) if isinstance(data, dict) else None
    return data
