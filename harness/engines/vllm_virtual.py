"""The engine `vllm-virtual`: vLLM's own scheduler in virtual time.

It is the reference for `sim` (docs/design/fidelity.md). It has the options of `--engine sim` and
needs vLLM, but no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from msgspec import structs

from harness.cells.job import Job
from harness.engines.base import EngineKind, Resolved, split_supported
from harness.engines.sim import SimEngine, resolve_profile, sim_engine
from harness.engines.virtual_cell import run_virtual
from harness.load.option import build, values_of
from harness.load.settings import SweepSettings
from harness.load.workload import Longest
from servers.basics.errors import CellFailed, EngineError, InvalidInput
from servers.policies.base import UNLIMITED_KV
from servers.records.done import DoneRecord
from servers.records.settings import EngineSettings, OffloadRecord, ServerRecord
from servers.records.turns import EventRecord, TurnRecord
from servers.sim import Limits
from servers.variants import Variant
from servers.vllm.launch.command_line import check_limits
from servers.vllm.launch.find_vllm import VllmInstallation, find_vllm
from servers.vllm.launch.policy_module import check_loads, module_root
from servers.vllm.virtual_time.client import RemoteVllm, VllmProcess


@dataclass(frozen=True, slots=True)
class VllmVirtualEngine:
    sim: SimEngine
    """The `sim` engine with the same machine and model."""
    vllm: VllmInstallation

    @property
    def kind(self) -> EngineKind:
        return VLLM_VIRTUAL

    @property
    def model(self) -> str:
        return self.sim.model

    @property
    def hardware(self) -> str:
        return self.sim.hardware

    @property
    def longest(self) -> Longest:
        return self.sim.longest

    def describe(self) -> str:
        profile = self.sim.profile
        return (
            f"engine vllm-virtual: the scheduler of vLLM {self.vllm.version} in virtual time, "
            f"{profile.provenance} profile of {self.model} on {self.sim.machine}; "
            "this run uses no GPU"
        )

    def settings(self, variant: Variant | None = None) -> EngineSettings:
        server = ServerRecord(vllm=self.vllm.version)
        return structs.replace(
            self.sim.settings(variant),
            engine=self.kind.name,
            virtual_time=self.kind.virtual_time,
            server=server,
        )

    def tier(self, variant: Variant) -> OffloadRecord | None:
        return self.sim.tier(variant)

    def run(
        self,
        job: Job,
        on_turn: Callable[[TurnRecord], None],
        on_event: Callable[[EventRecord], None],
        on_stage: Callable[[str], None],
    ) -> DoneRecord:
        profile, limits = self.sim.profile, job.variant.limited(self.sim.limits)
        on_stage("importing vLLM")
        try:
            policy = job.variant.policy_spec
            process = _process(self.vllm.python, module_root(policy))
            engine = partial(RemoteVllm, process, policy, profile, limits, on_event=on_event)
            return run_virtual(job, engine, on_turn)
        except EngineError as failed:
            _process.cache_clear()
            raise CellFailed(str(failed)) from None


@cache
def _process(python: str, policy_module: Path | None) -> VllmProcess:
    """Start one process for all cells of a worker, because importing vLLM takes about ten seconds.

    Each policy module of the user gets its own process.
    """
    return VllmProcess(python, policy_module)


def virtual_engine(settings: SweepSettings) -> Resolved:
    vllm = find_vllm(settings.server.vllm_python)
    limits = build(Limits, values_of(settings.machine))
    check_limits(limits, vllm)

    def check(variant: Variant) -> None:
        _refuse_memory(variant)
        check_limits(variant.limited(limits), vllm)
        check_loads(variant.policy_spec, vllm.python)

    chosen, left_out = split_supported(settings.policies, check)
    sim = sim_engine(settings, chosen, resolve_profile(settings.machine))
    return chosen, VllmVirtualEngine(sim, vllm), left_out


def _refuse_memory(variant: Variant) -> None:
    if variant.reference == UNLIMITED_KV:
        raise InvalidInput(
            f"--policies {variant.name}: vLLM creates every block when it starts, so its KV memory "
            "has a limit; use --engine sim"
        )
    if variant.offload is not None:
        raise InvalidInput(
            f"--policies {variant.name}: vllm-virtual has no offload tier; use --engine sim"
        )


VLLM_VIRTUAL = EngineKind(
    "vllm-virtual", virtual_engine, virtual_time="virtual time of vLLM's own scheduler"
)
