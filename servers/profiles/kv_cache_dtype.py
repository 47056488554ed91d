"""The number format of the KV cache, as vLLM's option of the same name sets it."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

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


def with_kv_cache(llm: Model, dtype: KvCacheDtype) -> Model:
    """Return the model with KV in this format. Latent attention has one byte per entry too, as in
    vLLM's `fp8`; `fp8_ds_mla`, with scales and a rotary part in 16 bits, is another format."""
    if dtype == KvCacheDtype.AUTO:
        return llm
    kinds = tuple(replace(kind, entry_bytes=KV_FP8_BYTES) for kind in llm.kinds)
    return replace(llm, kinds=kinds)
