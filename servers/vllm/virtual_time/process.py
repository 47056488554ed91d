"""Runs the cells of `--engine vllm-virtual` with the interpreter of vLLM's environment.

python -m servers.vllm.virtual_time.process
"""

from __future__ import annotations

from functools import partial

from servers.profiles import Profile, costs
from servers.remote.cell import client_stream, serve
from servers.sim import Limits
from servers.variants import Variant, make_policy, variants
from servers.vllm.virtual_time.engine import VirtualVllm


def engine(variant: Variant, profile: Profile, limits: Limits) -> partial[VirtualVllm]:
    policy_costs = costs(
        profile, step_tokens=limits.step_tokens, offload=False, speculation=limits.speculation
    )
    return partial(VirtualVllm, make_policy(variant, policy_costs), profile, limits)


if __name__ == "__main__":
    send = client_stream()
    send({"ready": True})
    serve(variants, engine, send)
