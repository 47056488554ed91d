"""The engine `sim`: virtual time with the profile of a machine. It starts no server process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from msgspec import convert, structs

from harness.cells.job import Job
from harness.engines.base import EngineKind, Resolved, engine_count, split_supported, with_routers
from harness.engines.virtual_cell import run_virtual
from harness.load.option import build, values_of
from harness.load.server_config import limits_record
from harness.load.settings import DISAGGREGATION, Machine, Server, SweepSettings
from harness.load.workload import Longest, more_memory
from harness.replay.virtual import EngineFactory
from servers.basics.errors import InvalidInput, NoTier
from servers.basics.phrasing import counted
from servers.policies.base import UNLIMITED_KV
from servers.policies.unlimited_kv import KV_BLOCKS
from servers.profiles import MODELS, Hardware, Profile, costs, hardware, model
from servers.profiles.cpu_time import Scheduling
from servers.profiles.drafts import check_model, with_draft_memory, with_draft_share
from servers.profiles.files import (
    is_file,
    measured_for,
    notes_for,
    notes_of_file,
    profile_for,
    profile_of_file,
)
from servers.profiles.kv_budget import gpus_for
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.profiles.kv_memory import EVEN, FULL_ATTENTION
from servers.profiles.layout import ExpertTimes, Layout, Stages
from servers.profiles.machines.gpu_file import gpu_of_file
from servers.profiles.measured import Measured
from servers.profiles.roofline import LINK_EFFICIENCY, expert_times, stage_times
from servers.records.done import DoneRecord
from servers.records.settings import (
    EngineSettings,
    OffloadRecord,
    ProfileRecord,
    TransferRecord,
)
from servers.records.turns import EventRecord
from servers.routing import NamedRouter
from servers.sim import (
    DisaggregatedFleet,
    Engine,
    Fleet,
    Limits,
    LockstepFleet,
    Offload,
    OnEvent,
    PipelineEngine,
    Transfer,
)
from servers.speculation import Speculation
from servers.variants import Variant, make_policy

DEFAULT_HARDWARE, DEFAULT_MODEL = "a100-80g", "llama-3.1-8b"
"""A machine on which schedulers differ: docs/design/statistics.md, Workload, machine and SLO."""
MEASURED_OFFLOAD_GB = 100.0
"""DRAM for a measured profile, which has no DRAM size. The papers use 100 GB with one A100."""
MAX_GB = 1_000_000


@dataclass(frozen=True, slots=True)
class SimEngine:
    profile: Profile
    profile_with_offload: Profile
    limits: Limits
    offload: Offload
    gpus: int | None = None
    """Number of GPUs that share the model; None if unknown from a measured profile."""
    gpu: Hardware | None = None
    """The GPU if a file describes it."""
    fewest_gpus: bool = False
    """Whether `gpus` is the smallest number that has room for the model, and was not given."""
    scheduling: Scheduling = Scheduling.ASYNC
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO
    more_memory: str = ""
    """How to make room for longer contexts."""
    profile_notes: tuple[str, ...] = ()
    """What readers of results should know about the profile, in one sentence each."""
    model_limit: int | None = None
    """Longest context of the model on any machine; None if unknown from a measured profile."""
    offloads: bool = False
    """Whether a variant of the sweep has an offload tier."""
    replicas: int = 1
    """Machines of this kind, with the whole model each; or ranks."""
    experts: ExpertTimes | None = None
    """What the replicas compute for each other, if they are ranks of one server."""
    stages: Stages | None = None
    """The stages of the GPUs of a replica, if they are a pipeline."""
    transfer: Transfer | None = None
    """The link of each prefill engine, if a variant has some."""
    kind: EngineKind = field(default_factory=lambda: SIM)

    @property
    def model(self) -> str:
        return self.profile.model

    @property
    def hardware(self) -> str:
        return self.profile.hardware

    @property
    def longest(self) -> Longest:
        profiles = (self.profile, self.profile_with_offload) if self.offloads else (self.profile,)
        tokens = min(
            min(profile.max_model_len, profile.longest_turn(self.limits.step_tokens))
            for profile in profiles
        )
        where = f" on {self.hardware}"
        return Longest.of(tokens, self.model, self.model_limit, where, self.more_memory)

    @property
    def _layout(self) -> Layout | None:
        if self.stages is not None:
            return Layout.PP
        return None if self.experts is None else Layout.DP_ATTN

    def describe(self) -> str:
        kind = "replicas" if self.transfer is None else "engines"
        kind = "ranks" if self.experts is not None else kind
        replicas = "" if self.replicas == 1 else f"{self.replicas} {kind}, each "
        return (
            f"engine {self.kind.name}: {self.kind.virtual_time}, {self.profile.provenance} profile "
            f"of {self.model} on {replicas}{self.machine}; this run uses no GPU"
        )

    @property
    def machine(self) -> str:
        """Return the hardware in words with its KV memory, which decides how many turns run at
        once, and with a number of GPUs that the user did not choose."""
        profile = self.profile
        memory = f"{profile.kv_tokens(self.limits.step_tokens, profile.max_model_len):,} KV tokens"
        if not self.fewest_gpus:
            return f"{self.hardware} with {memory}"
        return f"{self.gpus} x {self.hardware} (the fewest with room for it) with {memory}"

    def profile_of(self, variant: Variant) -> Profile:
        if variant.reference == UNLIMITED_KV:
            return replace(self.profile, kv_blocks=KV_BLOCKS)
        return self.profile_with_offload if variant.offload else self.profile

    def settings(self, variant: Variant | None = None) -> EngineSettings:
        transfer = self.transfer if variant is None or variant.split is not None else None
        settings = EngineSettings(
            engine=self.kind.name,
            virtual_time=self.kind.virtual_time,
            hardware=self.hardware,
            model=self.model,
            gpus=None if self.gpus is None else self.gpus * self.replicas,
            gpu=None if self.gpu is None else asdict(self.gpu),
            profile=_record(self.profile if variant is None else self.profile_of(variant)),
            replicas=None if self.replicas == 1 else self.replicas,
            layout=self._layout,
            transfer=None if transfer is None else TransferRecord(**asdict(transfer)),
            limits=limits_record(self.limits if variant is None else variant.limited(self.limits)),
            scheduling=self.scheduling,
            kv_cache_dtype=self.kv_cache_dtype.recorded,
        )
        if variant is not None:
            return settings
        return structs.replace(
            settings,
            profile_with_offload=_record(self.profile_with_offload),
            profile_notes=self.profile_notes,
        )

    def tier(self, variant: Variant) -> OffloadRecord | None:
        return OffloadRecord(**asdict(self.offload)) if variant.offload else None

    def run(self, job: Job) -> DoneRecord:
        variant, profile = job.variant, self.profile_of(job.variant)
        limits = variant.limited(self.limits)
        policy_costs = costs(
            profile,
            step_tokens=limits.step_tokens,
            offload=bool(variant.offload),
            speculation=limits.speculation,
            stages=self.stages,
        )
        offload, stages = self.offload if variant.offload else None, self.stages

        def engine(on_event: OnEvent) -> Callable[..., Engine]:
            policy = make_policy(variant, policy_costs)
            if stages is not None:
                return partial(PipelineEngine, policy, profile, limits, stages, on_event=on_event)
            return partial(Engine, policy, profile, limits, offload, on_event=on_event)

        if not isinstance(variant.router, NamedRouter):
            return run_virtual(job, engine(job.on_event))
        engines = [
            engine(partial(_of_replica, index, job.on_event)) for index in range(self.replicas)
        ]
        fleet: EngineFactory = partial(Fleet, variant.router, engines)
        if self.experts is not None:
            fleet = partial(LockstepFleet, variant.router, engines, self.experts)
        if variant.split is not None and self.transfer is not None:
            decode, prefill = engines[: variant.split.decode], engines[variant.split.decode :]
            fleet = partial(DisaggregatedFleet, variant.router, decode, prefill, self.transfer)
        done = run_virtual(job, fleet)
        done.kv_blocks = self.replicas * profile.kv_blocks
        return done


class OfSimMachine:
    """An engine with the machine and the model of its `sim`."""

    __slots__ = ()
    sim: SimEngine

    @property
    def model(self) -> str:
        return self.sim.model

    @property
    def hardware(self) -> str:
        return self.sim.hardware

    @property
    def longest(self) -> Longest:
        return self.sim.longest


def _of_replica(index: int, on_event: OnEvent, event: EventRecord) -> None:
    event.replica = index
    on_event(event)


def _record(profile: Profile) -> ProfileRecord:
    fields = asdict(profile)
    for name, default in (("kv_groups", FULL_ATTENTION), ("block_lengths", EVEN)):
        if fields[name] == default:
            del fields[name]
    return convert(fields, ProfileRecord)


def resolve_sim(settings: SweepSettings) -> Resolved:
    found = resolve_profile(settings.machine)
    if found.experts is not None:
        settings = _with_ranks(settings, found.gpus or 1)
        found = replace(found, gpus=1)
    if found.stages is not None:
        _refuse_with_layout(settings, "disaggregate", "speculate")
    check = partial(_check_tier, settings, found.profile())
    plain, left_out = split_supported(settings.policies, check)
    chosen = with_routers(plain, settings.server, "sim")
    return chosen, sim_engine(settings, chosen, found), left_out


def _with_ranks(settings: SweepSettings, ranks: int) -> SweepSettings:
    """Return the settings with as many replicas as ranks. Raise InvalidInput for what is not
    modelled together with them."""
    _refuse_with_layout(settings, "replicas", "disaggregate", "speculate")
    return replace(settings, server=replace(settings.server, replicas=ranks))


def _refuse_with_layout(settings: SweepSettings, *options: str) -> None:
    given = {**values_of(settings.server), **values_of(settings.machine)}
    defaults = {**values_of(Server()), **values_of(Machine())}
    for option in options:
        if given[option] != defaults[option]:
            raise InvalidInput(
                f"--{option} {given[option]}: not modelled with --layout "
                f"{settings.machine.layout}; remove one"
            )


def _check_tier(settings: SweepSettings, profile: Profile, variant: Variant) -> None:
    if variant.offload is None:
        return
    if profile.keeps_states:
        raise NoTier(
            f"{variant.name}: has an offload tier, which stores no states of layers, and "
            f"{profile.model} has such layers; remove it from --policies"
        )
    if settings.machine.layout == Layout.PP:
        raise InvalidInput(
            f"{variant.name}: has an offload tier, which is not modelled with --layout "
            f"{Layout.PP}; remove it from --policies"
        )
    if settings.server.disaggregate is not None:
        raise InvalidInput(
            f"--disaggregate {settings.server.disaggregate}: {variant.name} has an offload tier, "
            "which prefill and decode engines do not have here; remove it from --policies"
        )
    if settings.machine.speculate is not None:
        raise InvalidInput(
            f"--speculate {settings.machine.speculate}: {variant.name} has an offload tier, whose "
            "loads are not modelled beside slots for drafts; remove it from --policies"
        )


def sim_engine(
    settings: SweepSettings,
    chosen: Sequence[Variant],
    found: ResolvedProfile,
    kind: type[SimEngine] = SimEngine,
) -> SimEngine:
    machine = settings.machine
    offload = Offload(_offload_gb(machine, found), machine.ssd_gb)
    for option, gb in (("offload", offload.dram_gb), ("ssd", offload.ssd_gb)):
        if not 0 <= gb <= MAX_GB:
            raise InvalidInput(f"--{option}-gb {gb:g}: must be from 0 to {MAX_GB:,} GB")
    if any(v.offload for v in chosen) and offload.dram_gb <= 0:
        names = ", ".join(v.name for v in chosen if v.offload)
        raise InvalidInput(f"--offload-gb {offload.dram_gb:g}: must be positive for {names}")
    limits = build(Limits, values_of(machine))
    profile, notes = found.profile(), found.notes
    if (speculation := limits.speculation) is not None:
        speculation, profile = _speculate(speculation, settings, found)
        limits = replace(limits, speculate=str(speculation))
        notes = (*notes, _describe_drafts(speculation, machine.speculate or ""))
        if found.file is not None and speculation.drops_block:
            notes = (*notes, "the KV memory is as measured, without the KV of draft layers")
    for variant in chosen:
        variant.limited(limits)
    listed = None if found.file else model(machine.model or DEFAULT_MODEL)
    return kind(
        profile,
        found.profile(offload=True),
        limits,
        offload,
        found.gpus,
        gpu_of_file(machine.hardware or DEFAULT_HARDWARE),
        listed is not None and machine.gpus is None and listed.gpus is None,
        machine.scheduling,
        machine.kv_cache_dtype,
        more_memory(machine),
        notes,
        model_limit=None if listed is None else listed.max_model_len,
        offloads=any(v.offload for v in chosen),
        replicas=engine_count(settings.server),
        experts=found.experts,
        stages=found.stages,
        transfer=_transfer(settings.server, machine, found),
    )


def _speculate(
    speculation: Speculation,
    settings: SweepSettings,
    found: ResolvedProfile,
) -> tuple[Speculation, Profile]:
    """Return the speculation with the time of its drafts, and the profile with their memory. Raise
    InvalidInput for what is not modelled together with speculation."""
    profile, machine = found.profile(), settings.machine
    option = f"--speculate {machine.speculate}"
    if settings.server.disaggregate is not None:
        raise InvalidInput(
            f"{option}: --disaggregate is not modelled with it; use --replicas instead"
        )
    if len(profile.kv_groups) > 1 or profile.window is not None:
        raise InvalidInput(
            f"{option}: {profile.model} has sliding windows, chunks, states or sparse attention, "
            "for which speculation is not modelled; use a model whose layers attend to all tokens"
        )
    if found.file is not None:
        if profile.model in MODELS:
            check_model(speculation, MODELS[profile.model])
        return with_draft_share(speculation, None), profile
    llm = model(machine.model or DEFAULT_MODEL)
    check_model(speculation, llm)
    if speculation.drops_block and machine.kv_blocks is None:
        block_bytes = profile.kv_bytes_per_token * profile.block_tokens
        profile = with_draft_memory(profile, llm, block_bytes)
    return with_draft_share(speculation, llm), profile


def _describe_drafts(speculation: Speculation, option: str) -> str:
    share = speculation.draft_share
    time = "drafts take no time"
    if share:
        origin = "given" if "draft=" in option else "inferred"
        time = f"the time of a draft is {origin} as {share:.1%} of a step"
    return (
        f"speculative decoding with {speculation.method} drafts "
        f"{counted(speculation.tokens, 'token')} per turn and step, of which "
        f"{sum(speculation.accept):.2g} are accepted on average, as given and not measured; {time}"
    )


def _transfer(server: Server, machine: Machine, found: ResolvedProfile) -> Transfer | None:
    """Return the link of a prefill engine, by default that between its GPUs and others of its kind;
    of a measured profile, which does not have it, the one to the host."""
    if server.disaggregate is None:
        return None
    profile = found.profile()
    if len(profile.kv_groups) > 1:
        raise InvalidInput(
            f"--disaggregate {server.disaggregate}: {profile.model} has sliding windows, "
            "chunks or states, which cannot be transferred here; use a model without, or --replicas"
        )
    if server.transfer_gb_per_s is not None:
        return Transfer(server.transfer_gb_per_s * 1e9, server.transfer_latency_s)
    bytes_per_s = profile.dram_bytes_per_s
    if found.file is None and found.gpus is not None:
        gpu = hardware(machine.hardware or DEFAULT_HARDWARE)
        link = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s
        bytes_per_s = link * LINK_EFFICIENCY * found.gpus
    return Transfer(bytes_per_s, server.transfer_latency_s)


@dataclass(frozen=True, slots=True)
class ResolvedProfile:
    """The profile of the machine that the settings name."""

    profile: Callable[..., Profile]
    """Returns it; with `offload=True`, the one for policies with an offload tier."""
    notes: tuple[str, ...]
    """Its origin and its caveats, in one sentence each."""
    gpus: int | None
    """Number of GPUs that share the model; None if unknown from a measured profile."""
    file: Measured | None
    """The contents of the file of `bench profile`, if the settings name one."""
    experts: ExpertTimes | None = None
    """What ranks of attention compute for each other."""
    stages: Stages | None = None
    """The stages of a pipeline."""


def resolve_profile(machine: Machine) -> ResolvedProfile:
    """Raises InvalidInput, UnknownProfile or DoesNotFit."""
    name = machine.hardware or DEFAULT_HARDWARE
    memory: dict[str, Any] = {
        "max_model_len": machine.max_model_len, "kv_blocks": machine.kv_blocks,
    }  # fmt: skip
    if is_file(name):
        if machine.layout != Layout.TP:
            raise InvalidInput(
                f"--layout {machine.layout}: {name} is a file of bench profile, which has the times"
                " of a single engine; name a machine"
            )
        file = measured_for(
            name, machine.model, machine.gpus, machine.kv_cache_dtype, machine.step_times
        )
        profile = partial(profile_of_file, file, scheduling=machine.scheduling, **memory)
        notes = notes_of_file(file, profile(), machine.scheduling)
        return ResolvedProfile(profile, notes, file.gpus, file)
    llm = machine.model or DEFAULT_MODEL
    steps: dict[str, Any] = {
        "gpus": machine.gpus, "step_times": machine.step_times,
        "scheduling": machine.scheduling, "kv_cache_dtype": machine.kv_cache_dtype,
        "layout": machine.layout,
    }  # fmt: skip
    limits: dict[str, Any] = {
        "max_num_seqs": machine.max_num_seqs,
        "step_tokens": machine.step_tokens,
    }
    profile = partial(profile_for, name, llm, **steps, **memory, **limits)
    notes = notes_for(name, llm, profile(), **steps)
    gpus = gpus_for(name, llm, machine.gpus, machine.kv_cache_dtype)
    experts = stages = None
    if machine.layout == Layout.DP_ATTN:
        experts = expert_times(name, llm, gpus, machine.kv_cache_dtype)
    elif machine.layout == Layout.PP:
        stages = stage_times(name, llm, gpus)
    return ResolvedProfile(profile, notes, gpus, None, experts, stages)


def _offload_gb(machine: Machine, found: ResolvedProfile) -> float:
    if machine.offload_gb is not None:
        return machine.offload_gb
    if found.file is not None or found.gpus is None:
        return MEASURED_OFFLOAD_GB
    return hardware(machine.hardware or DEFAULT_HARDWARE).offload_gb * found.gpus


SIM: EngineKind = EngineKind(
    "sim",
    resolve_sim,
    takes=("replicas", "router", "layout", *DISAGGREGATION),
    virtual_time="virtual time",
    has_compiled_core=True,
)
