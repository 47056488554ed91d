"""The virtual-time engine: what vLLM v1 does, without a GPU, deterministic to the digit."""

from servers.sim.engine import Engine
from servers.sim.kv import Path, Segment
from servers.sim.scheduler import Limits
from servers.sim.sequence import Phase, Sequence, Submission, Usage, refuse_unfit
from servers.sim.tiers import Offload

__all__ = [
    "Engine",
    "Limits",
    "Offload",
    "Path",
    "Phase",
    "Segment",
    "Sequence",
    "Submission",
    "Usage",
    "refuse_unfit",
]
