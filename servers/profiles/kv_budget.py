"""What vLLM leaves of the memory of GPUs for KV: all but weights, buffers and CUDA graphs.

In: a machine, a model, the number of GPUs and the limits of a step. Out: bytes, and the number of
GPUs that a model needs. docs/reference/profiles.md has the sources, and compares KV tokens with
those that servers printed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from servers.admission import MAX_NUM_SEQS, STEP_TOKENS
from servers.basics.errors import InvalidInput
from servers.profiles.kv_cache_dtype import KvCacheDtype, lacks_kernels, with_kv_cache
from servers.profiles.kv_groups import block_tokens_of, pool
from servers.profiles.kv_memory import KvMemory
from servers.profiles.layout import Layout
from servers.profiles.machines.gpu_file import hardware
from servers.profiles.machines.gpus import GIB, HARDWARE, Hardware
from servers.profiles.models.listed import model
from servers.profiles.models.shape import Model
from servers.profiles.profile import CAPTURED

GPU_MEMORY_UTILIZATION = 0.9
SAMPLER_BYTES = 15
"""Bytes of vLLM's sampler for each turn of a step and entry of the vocabulary."""
VALUE_BYTES = 2
"""Bytes of an intermediate result, in BF16."""
NON_TORCH_BYTES = int(0.25 * GIB)
"""Memory of CUDA kernels and driver."""
NCCL_BYTES = int(1.85 * GIB)
"""Communication buffers per GPU that all-reduces or all-to-alls need."""
CUDA_GRAPH_BYTES = int(0.46 * 2**20)
"""Memory of the CUDA graphs of one layer for one size of a batch, as vLLM estimates it."""
TENSOR_PARALLEL = (1, 2, 4, 8)
MIN_CONTEXT_TOKENS = 2048
"""A model fits on a machine if the KV memory has room for this many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The settings of vLLM that the memory for KV depends on."""

    utilization: float = GPU_MEMORY_UTILIZATION
    """vLLM's `gpu_memory_utilization`."""
    max_num_seqs: int = MAX_NUM_SEQS
    step_tokens: int = STEP_TOKENS
    """vLLM's `max_num_batched_tokens`."""

    def __post_init__(self) -> None:
        if not 0 < self.utilization <= 1:
            raise InvalidInput(
                f"gpu_memory_utilization {self.utilization:g}: must be above 0 and at most 1"
            )


DEFAULT_USE = MemoryUse()


def kv_budget_bytes(gpu: Hardware, llm: Model, gpus: int, use: MemoryUse = DEFAULT_USE) -> int:
    """Return total × utilisation − activations − non-torch − NCCL − CUDA graphs − weights, summed
    over the GPUs (vLLM 0.32, `v1/worker/gpu_worker.py`); negative if the weights do not fit."""
    buffers = activation_bytes(llm, gpus, use) + NON_TORCH_BYTES + (NCCL_BYTES if gpus > 1 else 0)
    graphs = cuda_graph_bytes(llm, use.max_num_seqs)
    left = int(gpu.memory_bytes * use.utilization) - buffers - graphs
    return gpus * left - llm.weight_bytes_on(gpus)


def activation_bytes(llm: Model, gpus: int, use: MemoryUse) -> int:
    """Return the peak on each GPU: in the sampler, which has the hidden states of all tokens and
    scores the vocabulary for each turn, or in a layer, with the results of all its matrices."""
    sampler = use.max_num_seqs * llm.vocab * SAMPLER_BYTES
    hidden = use.step_tokens * llm.hidden * VALUE_BYTES
    widths = llm.token_params // (llm.layers * llm.hidden)
    return max(sampler + hidden, use.step_tokens * widths * VALUE_BYTES // gpus)


def cuda_graph_bytes(llm: Model, max_num_seqs: int) -> int:
    """Return what vLLM sets aside on each GPU since 0.21."""
    return len(captured(max_num_seqs)) * llm.layers * CUDA_GRAPH_BYTES


def captured(max_num_seqs: int) -> tuple[int, ...]:
    """Return the tokens of a step for which vLLM captures CUDA graphs: up to twice
    `max_num_seqs`."""
    return tuple(size for size in CAPTURED if size <= 2 * max_num_seqs)


def default_gpus(gpu: Hardware, llm: Model, use: MemoryUse = DEFAULT_USE) -> int:
    """Return the default number of GPUs of a listed model, or the smallest number on which the
    model of a config.json fits; 1 if it fits on none, which a later check reports."""
    if llm.gpus is not None:
        return llm.gpus
    return next((n for n in TENSOR_PARALLEL if fits(gpu, llm, n, use)), 1)


def gpus_for(
    hardware_name: str,
    model_name: str,
    gpus: int | None,
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO,
) -> int:
    """Return the number of GPUs that share the model: `gpus`, or the default."""
    if gpus is not None:
        return gpus
    gpu = hardware(hardware_name)
    return default_gpus(gpu, with_kv_cache(model(model_name), kv_cache_dtype, gpu))


def divides(llm: Model, gpus: int) -> bool:
    """Return whether vLLM can divide the heads: a GPU gets whole KV heads or a copy of one."""
    if llm.states is not None and not llm.states.divides(gpus):
        return False
    kv_heads = {kind.kv_heads for kind in llm.kinds}
    return llm.heads % gpus == 0 and all(each % gpus == 0 or gpus % each == 0 for each in kv_heads)


def fits(gpu: Hardware, llm: Model, gpus: int, use: MemoryUse = DEFAULT_USE) -> bool:
    """Return whether the GPUs can divide the model and have room for a short context."""
    if lacks_kernels(llm, gpu) or not divides(llm, gpus):
        return False
    block_tokens = block_tokens_of(llm, gpus, 16)
    groups, block_bytes, lengths = pool(llm, gpus, block_tokens)
    memory = KvMemory(0, block_tokens, kv_groups=groups, block_lengths=lengths)
    needed = memory.turn_blocks(MIN_CONTEXT_TOKENS, STEP_TOKENS)
    return kv_budget_bytes(gpu, llm, gpus, use) >= needed * block_bytes


def _fewer(gpu: Hardware, llm: Model, gpus: int, use: MemoryUse) -> str:
    """Return the option with which a step takes little enough memory, a half, a quarter, … of its
    value; empty if none is enough. A step needs a token for each turn."""
    for option, least in (("max_num_seqs", 1), ("step_tokens", use.max_num_seqs)):
        value: int = getattr(use, option)
        while (value := value // 2) >= least:
            if fits(gpu, llm, gpus, replace(use, **{option: value})):
                return f"--{option.replace('_', '-')} {value}"
    return ""


def too_large(
    gpu: Hardware, llm: Model, n: int, use: MemoryUse, shares: int, layout: Layout
) -> str:
    """Return in words how much is missing, and what to use instead."""
    possible = [count for count in TENSOR_PARALLEL if fits(gpu, llm, count, use)]
    if layout == Layout.DP_ATTN:
        remedy = f"each of {shares} GPUs has all weights but the experts': use more --gpus, or "
        remedy += f"--layout {Layout.TP}"
    elif layout == Layout.PP:
        remedy = f"each of {shares} GPUs has {llm.layers} layers or fewer: use more --gpus"
    elif enough := next(iter(possible), None):
        remedy = f"use --gpus {enough}"
    else:
        most = max(count for count in TENSOR_PARALLEL if divides(llm, count))
        cards = [each.name for each in HARDWARE.values() if fits(each, llm, most, use)]
        where = f"{most} x {' or '.join(cards[:4])}" if cards else "no known GPU"
        if others := len(cards[4:]):
            where += f" and {others} other{'s' if others > 1 else ''} (bench list hardware)"
        remedy = f"{most} GPUs are not enough; it fits on {where}"
    if fewer := _fewer(gpu, llm, n, use):
        remedy += f", or at most {fewer}"
    usable, weights = int(gpu.memory_bytes * use.utilization) * n, llm.weight_bytes_on(n)
    buffers = usable - weights - kv_budget_bytes(gpu, llm, n, use)
    return (
        f"{llm.name} does not fit on {n} x {gpu.name}: weights of {weights / GIB:.1f} GiB "
        f"and buffers of {buffers / GIB:.1f} GiB leave too little KV in {usable / GIB:.1f} GiB "
        f"({use.utilization:g} of the memory); {remedy}"
    )
