"""The virtual-time engine: a deterministic model of vLLM v1's scheduler and KV cache.

In: a policy, a profile, limits, and turns with their submission times. Out: finished and aborted
turns, and events.
"""

from servers.admission import Limits
from servers.sim.disaggregated import DisaggregatedFleet
from servers.sim.engine import Engine, OnEvent
from servers.sim.fleet import Fleet
from servers.sim.kv import Path, Segment
from servers.sim.lockstep import LockstepFleet
from servers.sim.pipeline import PipelineEngine
from servers.sim.sequence import EngineUsage, Phase, Sequence, Submission, refuse_unfit
from servers.sim.settings import Offload, Transfer

__all__ = [
    "DisaggregatedFleet",
    "Engine",
    "EngineUsage",
    "Fleet",
    "Limits",
    "LockstepFleet",
    "Offload",
    "OnEvent",
    "Path",
    "Phase",
    "PipelineEngine",
    "Segment",
    "Sequence",
    "Submission",
    "Transfer",
    "refuse_unfit",
]
