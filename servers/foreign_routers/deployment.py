"""What a router of another project gets to know about the servers behind it."""

from __future__ import annotations

from dataclasses import dataclass

from servers.vllm.plugin.cost_curve import CostCurve


@dataclass(frozen=True, slots=True)
class Deployment:
    urls: tuple[str, ...]
    kv_tokens: int
    """Tokens that fit into the KV memory of each server."""
    costs: CostCurve | None
    """Costs of the servers' model; None if unknown."""
    turn_timeout_s: float
    """How long a turn may take."""
