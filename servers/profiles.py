"""Placeholder: the contract of a profile; see `Profile`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PS_PER_S = 1_000_000_000_000
"""Virtual time is counted in whole picoseconds, so that sums of steps are exact."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How long a step takes and how much KV fits, for one model on one machine.

    A step that computes T tokens, in which decodes read C context tokens in all and prefill chunks
    make P query-key pairs, takes, in picoseconds,

        base_ps + max(weights_ps, T * token_ps) + C * context_ps + P * pair_ps
    """

    hardware: str
    model: str
    provenance: Literal["analytic", "measured"]
    kv_blocks: int
    block_tokens: int
    max_model_len: int
    kv_bytes_per_token: int
    base_ps: int
    weights_ps: int
    token_ps: int
    context_ps: int
    pair_ps: int
    dram_bytes_per_s: float
    """Host to device, for reloads from DRAM."""
    ssd_bytes_per_s: float
