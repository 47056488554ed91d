"""The number format of the KV cache, as vLLM's option of the same name sets it."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from servers.basics.errors import DoesNotFit
from servers.profiles.machines.gpus import HARDWARE, Hardware
from servers.profiles.models.architectures import ARCHITECTURES
from servers.profiles.models.config import KV_FP8_BYTES
from servers.profiles.models.shape import Model


class KvCacheDtype(StrEnum):
    AUTO = "auto"
    """16 bits, or FP8 where the checkpoint declares it."""
    FP8 = "fp8"

    @property
    def recorded(self) -> str | None:
        """The value in run folders; None for `auto`, which they leave out."""
        return None if self is KvCacheDtype.AUTO else self.value


HOPPER, BLACKWELL, WORKSTATION = 9, 10, 12
SCALED_BYTES = 80
"""Bytes per token and layer that vLLM's format `fp8_ds_mla` has beside a byte per entry: 16 of
scales, and a second byte of the 64 entries of the rotary part."""


def with_kv_cache(llm: Model, dtype: KvCacheDtype, gpu: Hardware | None = None) -> Model:
    """Return a model of a config with KV in this format, on the GPU if it is known. Latent
    attention has one byte per entry too, as in vLLM's `fp8`. Raises DoesNotFit for a GPU without
    kernels of sparse attention."""
    if is_sparse_latent(llm):
        return _sparse(llm, dtype, gpu)
    if dtype == KvCacheDtype.AUTO:
        return llm
    kinds = tuple(replace(kind, entry_bytes=KV_FP8_BYTES) for kind in llm.kinds)
    return replace(llm, kinds=kinds)


def is_sparse_latent(llm: Model) -> bool:
    """Return whether the model has an indexer beside latent attention, for which vLLM has kernels
    for some GPUs only. MiniMax-M3 has one beside keys and values, with Triton kernels for all
    (`vllm/models/minimax_m3/common`)."""
    return llm.indexer is not None and ARCHITECTURES[llm.architecture].latent


def lacks_kernels(llm: Model, gpu: Hardware) -> bool:
    """Return whether the GPU has no kernels of the model's attention. A GPU of a file has them."""
    return is_sparse_latent(llm) and gpu.name in HARDWARE and gpu.capability is None


def _sparse(llm: Model, dtype: KvCacheDtype, gpu: Hardware | None) -> Model:
    """Return the model with the format that vLLM 0.32 selects by compute capability
    (`vllm/platforms/cuda.py`, `_canonicalize_sparse_mla_kv_cache_dtype`). Of its FP8
    kernels, only the ones for capability 10 read a byte per entry. A GPU of a file is taken for a
    Hopper."""
    if gpu is not None and lacks_kernels(llm, gpu):
        known = ", ".join(each.name for each in HARDWARE.values() if each.capability)
        raise DoesNotFit(
            f"{llm.name} does not run on {gpu.name}: its sparse attention is supported on {known}"
        )
    capability = HOPPER if gpu is None or gpu.name not in HARDWARE else gpu.capability
    plain = capability == BLACKWELL
    always = capability == WORKSTATION or (plain and llm.architecture == "glm_moe_dsa")
    if dtype == KvCacheDtype.AUTO and not always and llm.kinds[0].entry_bytes != KV_FP8_BYTES:
        return llm
    scales = 0 if plain else SCALED_BYTES
    kinds = tuple(
        replace(kind, entry_bytes=KV_FP8_BYTES, other_bytes=kind.other_bytes + scales)
        for kind in llm.kinds
    )
    return replace(llm, kinds=kinds)
