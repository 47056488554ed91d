"""Analytic profiles: published peaks × assumed efficiencies.

In: names of a machine and a model. Out: `Profile`. The efficiencies are the same for all machines;
docs/reference/profiles.md has their sources and compares them with measurements.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from servers.admission import MAX_NUM_SEQS, STEP_TOKENS
from servers.basics.clock import PS_PER_S
from servers.basics.errors import CannotShare, DoesNotFit, InvalidInput
from servers.profiles.cpu_time import CPU_TIME, Scheduling, with_cpu_time
from servers.profiles.kv_budget import (
    GPU_MEMORY_UTILIZATION,
    NCCL_BYTES,
    TENSOR_PARALLEL,
    MemoryUse,
    captured,
    default_gpus,
    divides,
    fits,
    kv_budget_bytes,
    too_large,
)
from servers.profiles.kv_cache_dtype import KvCacheDtype, with_kv_cache
from servers.profiles.kv_groups import block_tokens_of, pool
from servers.profiles.kv_memory import KvMemory
from servers.profiles.layout import (
    ExpertTimes,
    Layout,
    Stages,
    experts_of,
    rank_of,
    slowest,
    stages_of,
)
from servers.profiles.machines.gpu_file import hardware
from servers.profiles.machines.gpus import Hardware
from servers.profiles.models.listed import model
from servers.profiles.models.shape import Model
from servers.profiles.profile import Knots, Profile, profile_of

ATTENTION_MFU = 0.65
"""Share of the BF16 tensor peak that a prompt's attention reaches; see also `Model.prefill_mfu`.
This and `DECODE_MBU` are medians over the GPUs that operator tables cover, for dense models."""
DECODE_MBU = 0.75
"""Share of the memory bandwidth that reading weights and KV reaches."""
LINK_EFFICIENCY = 0.8
"""Share of PCIe, NVLink and disk bandwidths that large transfers reach."""
ALL_REDUCE_PS = 10_000_000
"""Latency of one small all-reduce, 10 µs."""
SSD_BYTES_PER_S = 6_800_000_000
"""Sequential read of a PCIe 4 data-centre NVMe drive (Samsung PM9A3 datasheet), one per machine."""


def analytic_profile(
    hardware_name: str,
    model_name: str,
    *,
    gpus: int | None = None,
    max_model_len: int | None = None,
    kv_blocks: int | None = None,
    block_tokens: int = 16,
    offload: bool = False,
    scheduling: Scheduling = Scheduling.ASYNC,
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
    max_num_seqs: int = MAX_NUM_SEQS,
    step_tokens: int = STEP_TOKENS,
    layout: Layout = Layout.TP,
) -> Profile:
    """Return the profile of a model on a machine; with data parallelism, of one rank while the
    others compute nothing, and of a pipeline, of its slowest stage.

    `max_model_len` defaults to the model's limit or the KV capacity, whichever is less; vLLM would
    refuse to start. `kv_blocks` replaces the memory estimate. Raises UnknownProfile, DoesNotFit or
    InvalidInput."""
    gpu = hardware(hardware_name)
    llm = with_kv_cache(model(model_name), kv_cache_dtype, gpu)
    use = MemoryUse(
        utilization=gpu_memory_utilization, max_num_seqs=max_num_seqs, step_tokens=step_tokens
    )
    # Without the limits of a step, as in `gpus_for`, so that a run has one number.
    n = default_gpus(gpu, llm, MemoryUse(utilization=use.utilization)) if gpus is None else gpus
    whole, ranks, shares = llm, 1, [llm]
    if layout == Layout.DP_ATTN:
        ranks, n, llm = n, 1, rank_of(llm, n)
        shares = [llm]
    elif layout == Layout.PP:
        n, shares = 1, stages_of(llm, n)
        llm = slowest(shares)
    count = max(ranks, len(shares))
    _check(llm, n, max_model_len, kv_blocks, block_tokens)
    for share in shares:
        if not fits(gpu, share, n, use):
            raise DoesNotFit(too_large(gpu, share, n, use, count, layout))
    block_tokens = block_tokens_of(llm, n, block_tokens)
    pools = [pool(share, n, block_tokens, windows=not offload) for share in shares]
    groups, _, lengths = pools[0]
    blocks = kv_blocks
    if blocks is None:
        buffers = NCCL_BYTES if ranks > 1 else 0
        blocks = min(
            (kv_budget_bytes(gpu, share, n, use) - buffers) // each.block_bytes
            for share, each in zip(shares, pools, strict=True)
        )
    memory = KvMemory(blocks, block_tokens, kv_groups=groups, block_lengths=lengths)
    longest = min(llm.max_model_len, memory.longest_turn(STEP_TOKENS))
    if max_model_len is not None and max_model_len > longest:
        raise DoesNotFit(
            f"--max-model-len {max_model_len}: {blocks} KV blocks of {block_tokens} tokens hold "
            f"one request of {longest} tokens; give at most that, or more "
            f"{'--gpus' if kv_blocks is None else '--kv-blocks'}"
        )
    fields: dict[str, Any] = {
        "hardware": gpu.name,
        "model": llm.name,
        "provenance": "analytic",
        **asdict(memory),
        "max_model_len": longest if max_model_len is None else max_model_len,
        "kv_bytes_per_token": whole.kv_bytes_per_token_on(n),
        "dram_bytes_per_s": gpu.pcie_bytes_per_s * LINK_EFFICIENCY * n * len(shares),
        "ssd_bytes_per_s": SSD_BYTES_PER_S * LINK_EFFICIENCY,
        "graph_tokens": max(captured(max_num_seqs), default=0),
        **_step_ps(gpu, llm, n, ranks),
    }
    profile = profile_of(fields | _experts_ps(gpu, llm, n, fields["token_ps"]))
    return with_cpu_time(profile, CPU_TIME[scheduling], ahead=scheduling.ahead, offload=offload)


def expert_times(
    hardware_name: str, model_name: str, ranks: int, kv_cache_dtype: KvCacheDtype
) -> ExpertTimes:
    """Return the times that ranks share. Raises UnknownProfile or InvalidInput."""
    gpu = hardware(hardware_name)
    experts = experts_of(rank_of(with_kv_cache(model(model_name), kv_cache_dtype, gpu), ranks))
    token_ps = _step_ps(gpu, experts, 1, ranks)["token_ps"]
    return ExpertTimes(_knots(gpu, experts, 1, token_ps), token_ps)


def stage_times(hardware_name: str, model_name: str, count: int) -> Stages:
    """Return the stages of a pipeline. The activations of a token are two vectors of 16 bits, of
    the last layer and of the residual connection; they go over the link between two GPUs, whose
    latency is assumed to be that of a small all-reduce. Raises UnknownProfile."""
    gpu = hardware(hardware_name)
    link = (gpu.link_bytes_per_s or gpu.pcie_bytes_per_s) * LINK_EFFICIENCY
    sent_bytes = 2 * model(model_name).hidden * 2
    return Stages(count, ALL_REDUCE_PS, round(PS_PER_S * sent_bytes / link))


def _step_ps(gpu: Hardware, llm: Model, n: int, ranks: int = 1) -> dict[str, Any]:
    """Return the coefficients of the step formula. Ring all-reduces move 2 (n-1)/n of the
    activations. So do an all-gather before the experts of a layer and a reduce-scatter after them,
    which ranks need instead."""
    fp8_flops = gpu.fp8_flops if llm.matmul == "fp8" else None
    flops = (fp8_flops or gpu.bf16_flops) * n * llm.prefill_mfu
    attention_flops = gpu.bf16_flops * n * ATTENTION_MFU
    memory = _memory_bytes_per_s(gpu, n)
    link = (gpu.link_bytes_per_s or gpu.pcie_bytes_per_s) * LINK_EFFICIENCY
    serial_s = 0.0
    if llm.states is not None:
        serial_s = llm.states.layers * max(llm.states.flops / attention_flops, llm.states.token_s)
    if llm.indexer is not None:
        serial_s += llm.indexer.layers * llm.indexer.token_s
    reduces, messages = llm.reduces_per_layer * llm.layers if n > 1 else 0, 1
    if ranks > 1:
        reduces, messages = llm.expert_layers, 2
    reduced_bytes = reduces * llm.hidden * 2 * 2 * (1 - 1 / max(n, ranks))
    return {
        "base_ps": reduces * messages * ALL_REDUCE_PS,
        "weights_ps": round(PS_PER_S * llm.step_bytes() / memory),
        "request_ps": 0,
        # States are read and written in each step. No published figure separates other costs of a
        # turn from base_ps.
        "sequence_ps": round(PS_PER_S * 2 * llm.state_bytes_on(n) / memory),
        "token_ps": round(
            PS_PER_S * (2 * llm.token_params / flops + serial_s + reduced_bytes / link)
        ),
        **_attention_ps(gpu, llm, n, windows=False),
        "window": llm.window
        and {
            "tokens": llm.window,
            **_attention_ps(gpu, llm, n, windows=True),
            **({"chunked": True} if any(kind.chunked for kind in llm.kinds) else {}),
        },
    }


def _attention_ps(gpu: Hardware, llm: Model, n: int, *, windows: bool) -> dict[str, int]:
    """Return the coefficients of attention in the layers with a window, or in all others."""
    read_bytes = llm.read_bytes_per_token_on(n, windows=windows)
    flops = gpu.bf16_flops * n * ATTENTION_MFU
    pair_ps = PS_PER_S * llm.flops_per_pair(windows=windows) / flops
    pair_ps += 0.0 if windows else PS_PER_S * _indexer_s(gpu, llm, n)
    return {
        "context_ps": round(PS_PER_S * read_bytes / _memory_bytes_per_s(gpu, n)),
        "pair_ps": round(pair_ps),
    }


def _indexer_s(gpu: Hardware, llm: Model, n: int) -> float:
    """Return the time in which GPUs score a token for a query of a prompt."""
    if llm.indexer is None:
        return 0.0
    heads = llm.indexer.heads if llm.indexer.copied else max(1, llm.indexer.heads / n)
    peak = (llm.indexer.fp8 and gpu.fp8_flops) or gpu.bf16_flops
    return 2 * llm.indexer.layers * heads * llm.indexer.size / (peak * ATTENTION_MFU)


def _experts_ps(gpu: Hardware, llm: Model, n: int, token_ps: int) -> dict[str, Any]:
    """Return the fields of `TableProfile` for a model whose small steps read only some of its
    experts, and none for others."""
    if llm.experts_read(1) == 1:
        return {}
    decode_s = prompt_s = 0.0
    if llm.indexer is not None:
        decode_s, prompt_s = llm.indexer.decode_s, llm.indexer.prompt_s
        decode_s, prompt_s = llm.indexer.layers * decode_s, llm.indexer.layers * prompt_s
    return {
        "knots": _knots(gpu, llm, n, token_ps),
        "decode_ps": round(PS_PER_S * decode_s),
        "prefill_ps": round(PS_PER_S * prompt_s),
        "mean_context_ps": 0,
    }


def _knots(gpu: Hardware, llm: Model, n: int, token_ps: int) -> Knots:
    """Return knots at powers of two tokens, up to the first step that takes longer to compute than
    to read all weights."""
    memory = _memory_bytes_per_s(gpu, n)
    all_weights_ps = PS_PER_S * llm.step_bytes() / memory
    doublings = max(0, math.ceil(math.log2(all_weights_ps / token_ps)))
    return tuple(
        (tokens, max(round(PS_PER_S * llm.step_bytes(tokens) / memory), tokens * token_ps))
        for tokens in (1 << i for i in range(doublings + 1))
    )


def _memory_bytes_per_s(gpu: Hardware, n: int) -> float:
    return gpu.memory_bytes_per_s * n * DECODE_MBU


def _check(
    llm: Model,
    n: int,
    max_model_len: int | None,
    kv_blocks: int | None,
    block_tokens: int,
) -> None:
    possible = [str(count) for count in TENSOR_PARALLEL if divides(llm, count)]
    if str(n) not in possible:
        counts = {"heads": llm.heads, "KV heads": llm.kinds[0].kv_heads}
        if (states := llm.states) is not None and not states.divides(n):
            counts = {"state heads": states.heads}
            counts |= {"key heads": states.key_heads} if states.key_heads else {}
            counts |= {"groups of them": states.groups} if states.groups else {}
        has = " and ".join(f"{count} {what}" for what, count in counts.items())
        *rest, last = possible
        raise CannotShare(
            f"--gpus {n}: {llm.name} has {has}, which {n} GPUs"
            f" cannot share; use {' or '.join(filter(None, (', '.join(rest), last)))}"
        )
    for name, value in (("--kv-blocks", kv_blocks), ("block_tokens", block_tokens)):
        if value is not None and value < 1:
            raise InvalidInput(f"{name} {value}: must be at least 1")
    if max_model_len is not None and not 1 <= max_model_len <= llm.max_model_len:
        raise InvalidInput(
            f"--max-model-len {max_model_len}: must be 1 to {llm.max_model_len} for {llm.name}"
        )


def notes(
    profile: Profile,
    gpu: Hardware | None = None,
    llm: Model | None = None,
    gpus: int | None = None,
) -> tuple[str, ...]:
    """Return the caveats of a profile of a machine for readers of results, in one sentence each.
    `gpu` and `llm` are required if files describe them, and `gpus` unless it is the default."""
    gpu, llm = gpu or hardware(profile.hardware), llm or model(profile.model)
    notes = []
    if profile.provenance == "analytic":
        notes.append(
            f"step times are analytic: {llm.prefill_mfu:.0%} of published FLOP/s and "
            f"{DECODE_MBU:.0%} of published memory bandwidth, nothing measured"
        )
    if llm.states is not None:
        state_bytes = llm.state_bytes_on(gpus or default_gpus(gpu, llm))
        notes.append(
            f"{llm.states.layers} of {llm.layers} layers keep a state instead of KV, together "
            f"{state_bytes / 2**20:.1f} MiB per turn, so that a block has {profile.block_tokens} "
            "tokens, and a prefix hit ends at a block boundary where vLLM cached the state"
        )
    if llm.indexer is not None:
        rate, layer_s = "FP8" if llm.indexer.fp8 else "BF16", llm.indexer.decode_s
        choice = "the choice itself takes no time"
        if layer_s:
            prompt_s = llm.indexer.prompt_s
            choice = (
                f"kernels of sparse attention add {layer_s * 1000:g} ms per such layer to a step "
                f"with decodes, and {prompt_s * 1000:g} ms to one with a prompt"
            )
        notes.append(
            f"a query attends to {llm.indexer.tokens:,} tokens at most, which indexers in "
            f"{llm.indexer.layers} of {llm.layers} layers choose; scores of prompts are computed "
            f"at {ATTENTION_MFU:.0%} of published {rate} FLOP/s, and {choice}"
        )
    if profile.max_model_len < llm.max_model_len:
        notes.append(
            f"max_model_len is {profile.max_model_len} of the model's {llm.max_model_len} tokens; "
            f"the KV blocks have room for {profile.longest_turn(STEP_TOKENS)}"
        )
    if llm.gpus is None:
        fewest = default_gpus(gpu, llm)
        notes.append(f"by default {llm.name} runs on {fewest} x {gpu.name}, the fewest with room")
    return (*notes, gpu.note) if gpu.note else tuple(notes)
