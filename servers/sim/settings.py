"""The sizes of the offload tiers in virtual time, and the link between engines, as users set them.

The compiled core (`servers.basics.compiled_core`) has no copy of this module: its classes are also
used by processes that do not use that core, and their instances are sent from one process to
another.
"""

from __future__ import annotations

from dataclasses import dataclass

from servers.basics.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Offload:
    """Capacity of the offload tiers in units of 10⁹ bytes, and the size of their chunks."""

    dram_gb: float
    ssd_gb: float = 0.0
    chunk_tokens: int = 256
    """LMCache's default chunk."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The link over which a prefill engine sends KV."""

    bytes_per_s: float
    latency_s: float = 0.0
    """From the request of a decode engine to the first byte."""

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_s < float("inf"):
            raise InvalidInput(
                f"--transfer-gb-per-s {self.bytes_per_s / 1e9:g}: must be above 0 and finite"
            )
        if not 0 <= self.latency_s < float("inf"):
            raise InvalidInput(
                f"--transfer-latency-s {self.latency_s:g}: must be at least 0 and finite"
            )
