"""The engine `vllm-virtual`: vLLM's own scheduler in virtual time.

It is the reference for `sim` (docs/design/fidelity.md). It has the options of `--engine sim` and
needs vLLM, but no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.engines.base import EngineKind, Resolved, split_supported
from harness.engines.remote_virtual import RemoteVirtualEngine, started
from harness.engines.sim import resolve_profile, sim_engine
from harness.load.option import build, values_of
from harness.load.settings import SweepSettings
from servers.basics.errors import InvalidInput
from servers.policies.base import UNLIMITED_KV
from servers.records.settings import ServerRecord
from servers.remote.client import EngineProcess
from servers.sim import Limits
from servers.variants import Variant
from servers.vllm.launch.command_line import check_limits
from servers.vllm.launch.find_vllm import find_vllm
from servers.vllm.launch.policy_module import check_loads, module_root
from servers.vllm.virtual_time.client import vllm_process


@dataclass(frozen=True, slots=True)
class VllmVirtualEngine(RemoteVirtualEngine):
    scheduler_of = "vLLM"

    def server(self) -> ServerRecord:
        return ServerRecord(vllm=self.version)

    def policy(self, variant: Variant) -> str:
        return variant.policy_spec

    def process(self, variant: Variant) -> EngineProcess:
        return started(vllm_process, self.python, module_root(variant.policy_spec))


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
    return chosen, VllmVirtualEngine(VLLM_VIRTUAL, sim, vllm.python, vllm.version), left_out


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


VLLM_VIRTUAL: EngineKind = EngineKind(
    "vllm-virtual", virtual_engine, virtual_time="virtual time of vLLM's own scheduler"
)
