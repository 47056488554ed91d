"""The engine `sglang-virtual`: SGLang's own scheduler and radix cache in virtual time.

It takes the machines of `--engine sim` and the schedulers of `--engine sglang`, and needs SGLang,
but no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from harness.engines.base import OTHER_SCHEDULER, EngineKind, Resolved
from harness.engines.remote_virtual import RemoteVirtualEngine, started
from harness.engines.sim import resolve_profile, sim_engine
from harness.load.settings import SweepSettings
from harness.load.workload import Longest
from servers.basics.errors import InvalidInput
from servers.profiles import Profile
from servers.records.settings import EngineSettings, LimitsRecord, ServerRecord
from servers.remote.client import EngineProcess
from servers.sglang.find_sglang import find_scheduler
from servers.sglang.schedulers import sglang_variants
from servers.sglang.virtual_time.client import RESERVED_TOKENS, sglang_process
from servers.variants import Variant


@dataclass(frozen=True, slots=True)
class SglangVirtualEngine(RemoteVirtualEngine):
    scheduler_of = "SGLang"

    @property
    def kind(self) -> EngineKind:
        return SGLANG_VIRTUAL

    @property
    def longest(self) -> Longest:
        profile = self.sim.profile
        tokens = profile.kv_blocks * profile.block_tokens - RESERVED_TOKENS
        longest = self.sim.longest
        if longest.tokens is not None and longest.tokens <= tokens:
            return longest
        return Longest(tokens, f"the {tokens} that SGLang admits here")

    def server(self) -> ServerRecord:
        return ServerRecord(sglang=self.version)

    def settings(self, variant: Variant | None = None) -> EngineSettings:
        settings = RemoteVirtualEngine.settings(self, variant)
        limits = self.sim.limits
        return structs.replace(
            settings,
            limits=LimitsRecord(max_num_seqs=limits.max_num_seqs, step_tokens=limits.step_tokens),
        )

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
    _check_memory(found.profile())
    sglang = find_scheduler()
    sim = sim_engine(settings, chosen, found)
    return chosen, SglangVirtualEngine(sim, sglang.python, sglang.version), ()


def _check_memory(profile: Profile) -> None:
    if profile.kv_groups != (None,) or profile.window is not None:
        raise InvalidInput(
            f"--model {profile.model}: has sliding windows, chunks, states or sparse attention, "
            "whose memory sglang-virtual does not model; use a model whose layers attend to all "
            "tokens, or --engine sim"
        )


SGLANG_VIRTUAL = EngineKind(
    "sglang-virtual",
    sglang_virtual_engine,
    refuses={
        **OTHER_SCHEDULER,
        "speculate": ", which has no drafts in virtual time; remove it, or use --engine sim",
        "admission": ", which has its own rule; remove it",
    },
    virtual_time="virtual time of SGLang's own scheduler",
)
