"""Computes the cost of rebuilding a context and of a decode step, for policies (Continuum v3, §5.2:
offline profile).

In: tokens. Out: seconds. The paper fits a quadratic to measured prefills; here the step formula of
`Profile` is summed over the chunks, which is exact in virtual time.
"""

from __future__ import annotations

from functools import partial

from servers.basics.clock import seconds
from servers.basics.errors import InvalidInput
from servers.policies.base import Costs
from servers.profiles.drafts import decode_token_s
from servers.profiles.layout import Stages
from servers.profiles.profile import Profile
from servers.speculation import Speculation


def prefill_ps(profile: Profile, step_tokens: int, tokens: int) -> int:
    """Return the time to prefill a prompt of n tokens alone in the engine, in full chunks and a
    rest, with n (n + 1) / 2 query-key pairs, or fewer in layers with a window."""
    chunks, rest = divmod(tokens, step_tokens)
    steps_ps = chunks * profile.step_ps(step_tokens, 1, 0, 0)
    steps_ps += profile.step_ps(rest, 1, 0, 0) if rest else 0
    steps_ps += profile.pair_ps * (tokens * (tokens + 1) // 2)
    if profile.window is not None:
        steps_ps += profile.window.pair_ps * profile.window.pairs(0, tokens)
    return steps_ps


def prefill_s(profile: Profile, step_tokens: int, tokens: int) -> float:
    return seconds(prefill_ps(profile, step_tokens, tokens))


def reload_s(profile: Profile, tokens: int) -> float:
    """Return the time to reload from DRAM. Policies do not know which blocks are on an SSD."""
    cpu_s = seconds(profile.load_ps + tokens * profile.load_token_ps)
    return cpu_s + tokens * profile.kv_bytes_per_token / profile.dram_bytes_per_s


def decode_step_s(profile: Profile, turns: int, context_tokens: int) -> float:
    """Return the time of a step without prefill. Layers with a window count with their whole
    context."""
    return seconds(profile.step_ps(turns, turns, context_tokens, 0))


def _pipelined_token_s(profile: Profile, stages: Stages, turns: int, context_tokens: int) -> float:
    """Return the time of a step of an Nth of the turns in all of N stages."""
    n = stages.count
    batch = -(-turns // n)
    step_s = decode_step_s(profile, batch, context_tokens // n)
    transfer_ps = stages.transfer_ps + batch * stages.transfer_token_ps
    return n * step_s + seconds((n - 1) * transfer_ps)


def costs(
    profile: Profile,
    *,
    step_tokens: int,
    offload: bool,
    speculation: Speculation | None = None,
    stages: Stages | None = None,
) -> Costs:
    """With speculation, a decode step takes the mean time of one token of each turn, and in a
    pipeline the time of one token of each turn."""
    if step_tokens < 1:
        raise InvalidInput(f"step_tokens {step_tokens}: must be at least 1")
    decode = partial(decode_step_s, profile)
    if speculation is not None:
        decode = partial(decode_token_s, profile, speculation)
    if stages is not None:
        decode = partial(_pipelined_token_s, profile, stages)
    return Costs(
        prefill_s=partial(prefill_s, profile, step_tokens),
        reload_s=partial(reload_s, profile) if offload else None,
        step_tokens=step_tokens,
        kv_tokens=profile.kv_tokens(step_tokens, profile.max_model_len),
        decode_step_s=decode,
    )
