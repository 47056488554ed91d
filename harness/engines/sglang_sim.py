"""The engine `sglang-sim`: a model of SGLang's scheduler in virtual time. It needs no SGLang.

It takes the machines of `--engine sim`, and the schedulers of SGLang that it models. Its reference
is `sglang-virtual`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from msgspec import structs

from harness.cells.job import Job
from harness.engines.base import OF_VLLM, EngineKind, Resolved, split_supported
from harness.engines.sim import SimEngine, resolve_profile, sim_engine
from harness.engines.virtual_cell import run_virtual
from harness.load.settings import SweepSettings
from harness.load.workload import Longest
from servers.basics.errors import InvalidInput
from servers.profiles import Profile
from servers.records.done import DoneRecord
from servers.records.settings import EngineSettings, LimitsRecord
from servers.sglang.find_sglang import TESTED
from servers.sglang.schedulers import Fcfs, LongestPrefixMatch, scheduler_of, sglang_variants
from servers.sglang.sim import SglangSim
from servers.sglang.turns import RESERVED_TOKENS
from servers.variants import Variant


@dataclass(frozen=True, slots=True)
class SglangSimEngine(SimEngine):
    kind: EngineKind = field(default_factory=lambda: SGLANG_SIM)

    @property
    def longest(self) -> Longest:
        tokens = self.profile.kv_blocks * self.profile.block_tokens - RESERVED_TOKENS
        longest = super(SglangSimEngine, self).longest
        if longest.tokens is not None and longest.tokens <= tokens:
            return longest
        return Longest(tokens, f"the {tokens} that SGLang admits here", self.more_memory)

    def settings(self, variant: Variant | None = None) -> EngineSettings:
        limits = LimitsRecord(
            max_num_seqs=self.limits.max_num_seqs, step_tokens=self.limits.step_tokens
        )
        return structs.replace(SimEngine.settings(self, variant), limits=limits)

    def run(self, job: Job) -> DoneRecord:
        scheduler = scheduler_of(job.variant)
        engine = partial(SglangSim, scheduler, self.profile, self.limits, on_event=job.on_event)
        return run_virtual(job, engine)


def sglang_sim_engine(settings: SweepSettings) -> Resolved:
    chosen, left_out = split_supported(settings.policies, _check_scheduler, sglang_variants)
    found = resolve_profile(settings.machine)
    check_memory(found.profile(), "sglang-sim")
    return chosen, sim_engine(settings, chosen, found, SglangSimEngine), left_out


def _check_scheduler(variant: Variant) -> None:
    arguments = dict(variant.arguments)
    if variant.policy not in (Fcfs, LongestPrefixMatch):
        lacks = "schedules as fcfs and lpm only"
    elif arguments.get("sessions") or arguments.get("eviction", "lru") != "lru":
        lacks = "evicts the least recently used KV only, without sessions"
    else:
        return
    other = "sglang" if arguments.get("eviction") == "tlru" else "sglang-virtual"
    raise InvalidInput(
        f"--policies {variant.name}: sglang-sim {lacks}; use --engine {other}, or remove it"
    )


def check_memory(profile: Profile, engine: str) -> None:
    """Raise InvalidInput for a model whose layers do not all attend to all tokens."""
    if profile.kv_groups != (None,) or profile.window is not None:
        raise InvalidInput(
            f"--model {profile.model}: has sliding windows, chunks, states or sparse attention, "
            f"whose memory {engine} does not model; use a model whose layers attend to all "
            "tokens, or --engine sim"
        )


REFUSED = {
    **OF_VLLM,
    "speculate": ", which has no drafts in virtual time; remove it, or use --engine sim",
    "admission": ", which has its own rule; remove it",
}
"""Settings that SGLang's scheduling in virtual time does not take."""
SGLANG_SIM: EngineKind = EngineKind(
    "sglang-sim",
    sglang_sim_engine,
    refuses=REFUSED,
    virtual_time=f"virtual time under the rules of SGLang {TESTED[-1]}",
)
