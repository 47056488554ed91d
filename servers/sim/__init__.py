"""The virtual-time engine: a deterministic model of vLLM v1's scheduler and KV cache.

In: a policy, a profile, limits, and turns with their submission times. Out: finished and aborted
turns, and events.
"""

from servers.sim.engine import Engine
from servers.sim.kv import Path, Segment
from servers.sim.sequence import Phase, Sequence, Submission, Usage, refuse_unfit
from servers.sim.settings import Limits, Offload

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
