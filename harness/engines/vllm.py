"""The engine `vllm`: a new vLLM server with the cell's policy for each cell.

Each cell starts with an empty prefix cache and a policy without history. A failed server affects
only one cell. Cells run one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace

from msgspec import to_builtins

from harness.cells.job import Job
from harness.engines.base import (
    OWN_SCHEDULING,
    EngineKind,
    Resolved,
    split_supported,
    with_routers,
)
from harness.engines.foreign_router import behind_router, find_routers
from harness.engines.live_engine import LiveEngine
from harness.engines.warm_up import warm_up
from harness.load.option import settings_of
from harness.load.server_config import limits_record, server_config, server_record
from harness.load.settings import DISAGGREGATION, Answers, Prompts, Server, SweepSettings
from harness.load.workload import Longest, more_memory
from harness.replay.live_server import LiveServer
from servers.basics.errors import InvalidInput, check_flags
from servers.basics.phrasing import listed
from servers.processes.environments import Installation
from servers.profiles.layout import Layout
from servers.profiles.machines.gpu_file import gpu_of_file
from servers.profiles.models.files import model_name
from servers.records.done import DoneRecord
from servers.records.fields import Scalar
from servers.records.settings import (
    EngineSettings,
    Numbers,
    OffloadRecord,
)
from servers.variants import Variant
from servers.vllm.launch import command_line
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.container import check_image
from servers.vllm.launch.find_vllm import VllmInstallation, find_vllm, vllm_in_image
from servers.vllm.launch.offload_tier import OffloadTier, check_tier
from servers.vllm.launch.policy_module import check_loads
from servers.vllm.launch.replicas import launch_replicas, machine_shares
from servers.vllm.models.model_folder import resolve_model

CPU_MODEL, GPU_MODEL = "tiny", "llama-3.1-8b"


@dataclass(frozen=True, slots=True)
class VllmEngine(LiveEngine):
    config: ServerConfig
    """Settings of the servers, except the policy and the offload tier, which differ by cell."""
    vllm: VllmInstallation
    longest: Longest
    dram_gb: float
    ssd_gb: float
    routers: Mapping[str, Installation] = field(default_factory=dict)
    """Where the routers of other projects are installed, by project."""

    @property
    def model(self) -> str:
        return model_name(self.config.model)

    @property
    def hardware(self) -> str:
        return self.vllm.device

    def describe(self) -> str:
        replicas = self.server.replicas
        servers = "a server" if replicas == 1 else f"{replicas} servers"
        return (
            f"engine vllm: vLLM {self.vllm.version} on {self.hardware}, {self.model}, "
            f"{servers} started for each cell, one cell at a time"
        )

    def config_for(self, variant: Variant) -> ServerConfig:
        config = variant.limited(self.config)
        return replace(config, policy=variant.policy_spec, offload=self._tier(variant))

    def _tier(self, variant: Variant) -> OffloadTier | None:
        if variant.offload is None:
            return None
        return OffloadTier(variant.offload, self.dram_gb, self.ssd_gb)

    def settings(self, variant: Variant | None = None) -> EngineSettings:
        config = self.config
        gpu = gpu_of_file(config.hardware)  # the policy's costs follow from it
        cpu = self.vllm.cpu
        return EngineSettings(
            engine=self.kind.name,
            hardware=self.hardware,
            model=self.model,
            gpus=None if cpu else command_line.tensor_parallel(config) * self.server.replicas,
            gpu=None if gpu is None else asdict(gpu),
            layout=None if config.layout == Layout.TP else config.layout,
            limits=limits_record(config if variant is None else self.config_for(variant)),
            kv_cache_dtype=config.kv_cache_dtype.recorded,
            server=server_record(
                config, self.server, vllm=self.vllm.version, torch=self.vllm.torch
            ),
            costs=None if variant is None else self._costs(variant),
        )

    def _costs(self, variant: Variant) -> dict[str, Scalar | Numbers]:
        curve, costs_from = command_line.policy_costs(self.config_for(variant), self.vllm)
        return {**to_builtins(curve), "from": costs_from}

    def check(self, variant: Variant) -> None:
        """Raise a ValueError if the variant cannot run here."""
        command_line.check_policy(variant.policy_spec)
        command_line.check_limits(self.config_for(variant), self.vllm)
        if self.config.image is None:
            check_loads(variant.policy_spec, self.vllm.python)
        tier = self._tier(variant)
        if tier is not None:
            check_tier(tier, self.vllm)
        command_line.policy_costs(self.config_for(variant), self.vllm)

    def tier(self, variant: Variant) -> OffloadRecord | None:
        tier = self._tier(variant)
        return None if tier is None else OffloadRecord(**asdict(tier))

    def serve(self, job: Job) -> DoneRecord:
        config = self.config_for(job.variant)
        servers = launch_replicas(
            config,
            self.server.replicas,
            job.folder / "server",
            python=self.vllm.python,
            ready_within_s=self.server.ready_within_s,
            on_progress=lambda seconds, _: job.on_stage(f"starting vLLM, {seconds:.0f} s"),
        )
        with ExitStack() as stack:
            for server in servers:
                stack.enter_context(server)
            info = servers[0].info
            kv_tokens = info.kv_blocks * info.block_size
            curve, _ = command_line.policy_costs(config, self.vllm)
            costs = replace(curve.costs(), reload_s=None, kv_tokens=kv_tokens)
            job.on_stage("warming up")
            for server in servers:
                warm_up(
                    server.base_url,
                    info.model,
                    range(*info.vocabulary),
                    config.step_tokens,
                    info.max_model_len,
                    kv_tokens,
                )
            replicas = [
                LiveServer(
                    each.base_url,
                    each.events_path,
                    kv_tokens,
                    costs=costs,
                    tagged=True,
                )
                for each in servers
            ]
            targets, routers = behind_router(
                job, self.routers, replicas, curve, self.server.turn_timeout_s, stack
            )
            service = self.service(
                *(targets, info.model, info.vocabulary, job.seed),
                replays_answers=self.config.recorded_answers,
            )
            done = self.replay(job, service, [*routers, *servers])
            if job.variant.offload is not None:
                done.external_hit_tokens = sum(s.external_hit_tokens() for s in servers)
        for server in servers:
            server.events_path.unlink()  # engine.jsonl of the cell contains all events
        done.kv_blocks = info.kv_blocks
        done.block_tokens = info.block_size
        done.max_model_len = info.max_model_len
        done.prefix_caching = info.cache_config.get("enable_prefix_caching") == "True"
        return done


def _refuse_answers_without_text(server: Server) -> None:
    if server.answers is Answers.GENERATED:
        return
    option = f"--answers {server.answers}"
    if server.prompts is not Prompts.TEXT:
        raise InvalidInput(
            f"{option}: needs the recorded messages; add --prompts text, or remove it (answers to "
            "prompts of token ids have no text, and the next prompt contains their tokens)"
        )


def vllm_engine(settings: SweepSettings) -> Resolved:
    server = settings.server
    check_flags(server.vllm_flags, command_line.REFUSED_FLAGS)
    if server.image is None:
        vllm = find_vllm(server.vllm_python)
    else:
        check_image(server.image)
        vllm = vllm_in_image(server.vllm_python)
    _refuse_answers_without_text(server)
    model = settings.machine.model or (CPU_MODEL if vllm.cpu else GPU_MODEL)
    config = server_config(settings.machine, server, model)
    command_line.check_limits(config, vllm)
    command_line.check_layout(config, vllm)
    command_line.check_answers(config, vllm)
    load = resolve_model(model, server.weights)
    if server.replicas > 1:
        machine_shares(config, vllm, server.replicas)
    longest = command_line.longest_context(config, vllm, load) or load.max_context
    engine = VllmEngine(
        kind=VLLM,
        server=server,
        config=config,
        vllm=vllm,
        longest=Longest.of(longest, load.name, load.max_context, "", more_memory(settings.machine)),
        dram_gb=command_line.dram_gb(settings.machine.offload_gb, vllm, settings.machine.gpus),
        ssd_gb=settings.machine.ssd_gb,
    )
    chosen, left_out = split_supported(settings.policies, engine.check)
    behind = with_routers(chosen, server, "vllm")
    behind, routers = find_routers(behind, settings)
    if config.recorded_answers and routers:
        raise InvalidInput(
            f"--answers recorded: not supported behind the routers of {listed(sorted(routers))}; "
            "use one of our routers, or --answers generated"
        )
    return behind, replace(engine, routers=routers), left_out


VLLM: EngineKind = EngineKind(
    "vllm",
    vllm_engine,
    takes=(settings_of(Server).keys() | {"layout"}) - {"events", *DISAGGREGATION},
    refuses=OWN_SCHEDULING,
)
