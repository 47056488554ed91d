"""The engine `sglang-virtual`: SGLang's own scheduler and radix cache in virtual time.

It takes the machines of `--engine sim` and the schedulers of `--engine sglang`, and needs SGLang,
but no GPU. It is the reference for `sglang-sim`.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.engines.base import EngineKind, Resolved
from harness.engines.remote_virtual import RemoteVirtualEngine, started
from harness.engines.sglang_sim import REFUSED, SglangSimEngine, check_memory
from harness.engines.sim import resolve_profile, sim_engine
from harness.load.settings import SweepSettings
from servers.basics.errors import InvalidInput
from servers.records.settings import ServerRecord
from servers.remote.client import EngineProcess
from servers.sglang.find_sglang import find_scheduler
from servers.sglang.schedulers import sglang_variants
from servers.sglang.virtual_time.client import sglang_process
from servers.variants import Variant


@dataclass(frozen=True, slots=True)
class SglangVirtualEngine(RemoteVirtualEngine):
    scheduler_of = "SGLang"

    def server(self) -> ServerRecord:
        return ServerRecord(sglang=self.version)

    def policy(self, variant: Variant) -> str:
        return variant.name

    def process(self, variant: Variant) -> EngineProcess:
        return started(sglang_process, self.python)


def sglang_virtual_engine(settings: SweepSettings) -> Resolved:
    chosen = tuple(sglang_variants(settings.policies))
    for variant in chosen:
        if dict(variant.arguments).get("eviction") == "tlru":
            raise InvalidInput(
                f"--policies {variant.name}: SGLang needs a threshold for tlru, a flag "
                "that only a server takes; use --engine sglang, or another eviction"
            )
    found = resolve_profile(settings.machine)
    check_memory(found.profile(), "sglang-virtual")
    sglang = find_scheduler()
    sim = sim_engine(settings, chosen, found, SglangSimEngine)
    return chosen, SglangVirtualEngine(SGLANG_VIRTUAL, sim, sglang.python, sglang.version), ()


SGLANG_VIRTUAL = EngineKind(
    "sglang-virtual",
    sglang_virtual_engine,
    refuses=REFUSED,
    virtual_time="virtual time of SGLang's own scheduler",
)
