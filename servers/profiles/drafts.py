"""Time and memory of speculative decoding (see `servers.speculation`), inferred from the model.

A pass of the draft layers is one layer of the model and its output head, as in MTP and EAGLE. In a
step of the model, their share of the time is taken to be their share of the weights. The draft
layer keeps as much KV as one more layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from servers.basics.clock import quotient, seconds
from servers.basics.errors import InvalidInput
from servers.profiles.models.shape import Model
from servers.profiles.profile import Profile
from servers.speculation import Speculation


def step_ps(
    profile: Profile,
    speculation: Speculation,
    chunks: Sequence[tuple[int, int]],
    contexts: Sequence[tuple[int, int]],
) -> int:
    """Return the time of a step with prefill chunks, given as (tokens, tokens computed before
    them), and with decodes, given as (tokens, context with these tokens).

    The model computes all tokens and reads each context once. So do the draft layers, which then
    compute one token of each decode for each further draft."""
    tokens = sum([n for n, _ in contexts]) + sum([n for n, _ in chunks])
    context = sum([n for _, n in contexts])
    pairs = sum([n * computed + n * (n + 1) // 2 for n, computed in chunks])
    model_ps = profile.step_ps(tokens, len(contexts) + len(chunks), context, pairs)
    return _with_drafts_ps(profile, speculation, model_ps, len(contexts), context)


def _with_drafts_ps(
    profile: Profile, speculation: Speculation, model_ps: int, decodes: int, context: int
) -> int:
    if not speculation.draft_share:
        return model_ps
    draft_ps = model_ps
    if decodes:
        later_ps = profile.step_ps(decodes, decodes, context, 0)
        draft_ps += (speculation.tokens - 1) * later_ps
    return model_ps + round(speculation.draft_share * draft_ps)


def decode_token_s(
    profile: Profile, speculation: Speculation, turns: int, context_tokens: int
) -> float:
    """Return the mean time in which a step of these decodes alone generates a token of each."""
    context = context_tokens + turns * speculation.tokens
    model_ps = profile.step_ps(turns * (1 + speculation.tokens), turns, context, 0)
    step = _with_drafts_ps(profile, speculation, model_ps, turns, context)
    return seconds(step) / (1 + sum(speculation.accept))


def check_model(speculation: Speculation, llm: Model) -> None:
    """Raise InvalidInput if vLLM or virtual time does not draft for the model with this method."""
    config = llm.config.get("text_config") or llm.config
    modules = config.get("num_nextn_predict_layers") or config.get("mtp_num_hidden_layers") or 0
    if speculation.method == "mtp" and modules != 1:
        has = f"{modules} MTP modules, whose prompts vLLM divides differently"
        if not modules:
            has = "no MTP layers (num_nextn_predict_layers in its config.json)"
        raise InvalidInput(f"--speculate {speculation}: {llm.name} has {has}; use eagle3 or ngram")


def with_draft_share(speculation: Speculation, llm: Model | None) -> Speculation:
    """Return the speculation with the share that the model implies, unless it has one."""
    if not speculation.drops_block:
        return speculation
    if speculation.draft_share is not None:
        return speculation
    if llm is None:
        raise InvalidInput(
            f"--speculate {speculation}: the layers of a measured model are unknown; add the time "
            "of a pass of the draft layers as a share of the model's, such as draft=0.05"
        )
    layer, head = _draft_bytes(llm)
    return replace(speculation, draft_share=quotient(layer + head, llm.step_bytes()))


def with_draft_memory(profile: Profile, llm: Model, block_bytes: int) -> Profile:
    """Return the profile with as many blocks as are left by the weights of the draft layer and its
    KV. MTP and EAGLE use the model's own head."""
    layer, _ = _draft_bytes(llm)
    memory = profile.kv_blocks * block_bytes - layer
    blocks = max(0, memory * llm.layers // (block_bytes * (llm.layers + 1)))
    if not blocks:
        raise InvalidInput(f"--speculate: no KV memory is left for {llm.name} beside a draft layer")
    most = min(profile.max_model_len, blocks * profile.block_tokens)
    return replace(profile, kv_blocks=blocks, max_model_len=most)


def _draft_bytes(llm: Model) -> tuple[int, int]:
    """Return the bytes of one of the model's layers, and of its head."""
    head = sum([each.size_bytes for each in llm.weights if each.use == "head"])
    return (llm.step_bytes() - head) // llm.layers, head
