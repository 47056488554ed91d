"""The engine `sglang`: new SGLang servers with the cell's scheduler for each cell.

SGLang has schedulers of its own, and runs none of our policies. Turns of token ids go to its native
API, and recorded messages to its OpenAI API. This was tested against servers that answer as its
code does, and has not been run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from harness.cells.job import Job
from harness.engines.base import OF_VLLM, OWN_SCHEDULING, EngineKind, Resolved, with_routers
from harness.engines.foreign_router import behind_router, find_routers
from harness.engines.live_engine import LiveEngine
from harness.engines.warm_up import send_prompts
from harness.load.server_config import server_config, server_record
from harness.load.settings import Prompts, SweepSettings
from harness.load.workload import Longest, more_memory
from harness.replay.identity import CLOSE_SESSION
from harness.replay.live_server import LiveServer
from harness.replay.sglang import SGLANG_APIS, flush_cache, sampling_params
from servers.basics.errors import InvalidInput, check_flags
from servers.basics.json_object import JsonObject
from servers.processes.environments import Installation
from servers.profiles.models.files import model_name
from servers.records.done import DoneRecord
from servers.records.settings import EngineSettings, LimitsRecord
from servers.routing import ForeignRouter, NamedRouter
from servers.sglang import command_line
from servers.sglang.find_sglang import find_sglang
from servers.sglang.schedulers import scheduler_of, sglang_variants
from servers.sglang.server import SglangServer, launch_replicas
from servers.variants import Variant
from servers.vllm.launch.command_line import ServerConfig, tensor_parallel
from servers.vllm.launch.find_vllm import gpu_names
from servers.vllm.launch.replicas import gpu_shares
from servers.vllm.models.model_folder import resolve_model

MODEL = "llama-3.1-8b"


@dataclass(frozen=True, slots=True)
class SglangEngine(LiveEngine):
    config: ServerConfig
    """Settings of the servers, except the scheduler, which differs by cell."""
    sglang: Installation
    longest: Longest
    routers: Mapping[str, Installation] = field(default_factory=dict)
    """Where the routers of other projects are installed, by project."""

    @property
    def model(self) -> str:
        return model_name(self.config.model)

    @property
    def hardware(self) -> str:
        return ", ".join(gpu_names()) or "unknown"

    def describe(self) -> str:
        replicas = self.server.replicas
        servers = "a server" if replicas == 1 else f"{replicas} servers"
        return (
            f"engine sglang: SGLang {self.sglang.version} on {self.hardware}, {self.model}, "
            f"{servers} started for each cell, one cell at a time"
        )

    def settings(self, _variant: Variant | None = None) -> EngineSettings:
        config = self.config
        return EngineSettings(
            engine=self.kind.name,
            hardware=self.hardware,
            model=self.model,
            gpus=tensor_parallel(config) * self.server.replicas,
            limits=LimitsRecord(max_num_seqs=config.max_num_seqs, step_tokens=config.step_tokens),
            kv_cache_dtype=config.kv_cache_dtype.recorded,
            server=server_record(config, self.server, sglang=self.sglang.version),
        )

    def serve(self, job: Job) -> DoneRecord:
        with ExitStack() as stack:
            servers = self._launch(job)
            for server in servers:
                stack.enter_context(server)
            job.on_stage("warming up")
            for server in servers:
                self._warm_up(server)
            info = servers[0].info
            replicas = [
                LiveServer(
                    each.base_url,
                    kv_tokens=info.kv_tokens,
                    session_ends=(CLOSE_SESSION,),
                    apis=SGLANG_APIS,
                )
                for each in servers
            ]
            targets, routers = behind_router(
                job, self.routers, replicas, None, self.server.turn_timeout_s, stack
            )
            service = self.service(targets, info.model, info.vocabulary, job.seed)
            done = self.replay(job, service, [*routers, *servers])
        done.kv_blocks = info.kv_tokens // info.page_tokens
        done.block_tokens = info.page_tokens
        done.max_model_len = info.max_model_len
        done.prefix_caching = info.radix_cache
        return done

    def _launch(self, job: Job) -> list[SglangServer]:
        return launch_replicas(
            self.config,
            self.server.replicas,
            scheduler_of(job.variant),
            self.sglang,
            job.folder / "server",
            ready_within_s=self.server.ready_within_s,
            on_progress=lambda seconds, _: job.on_stage(f"starting SGLang, {seconds:.0f} s"),
        )

    def _warm_up(self, server: SglangServer) -> None:
        """Send some prompts, and empty the cache: each cell begins without any KV."""
        info = server.info
        send_prompts(
            f"{server.base_url}/generate",
            _warm_up_body,
            range(*info.vocabulary),
            self.config.step_tokens,
            info.max_model_len,
            info.kv_tokens,
        )
        flush_cache(server.base_url)


def _warm_up_body(prompt: Any, output_tokens: int) -> JsonObject:
    return {
        "input_ids": prompt,
        "sampling_params": sampling_params(output_tokens),
        "stream": True,
    }


def sglang_engine(settings: SweepSettings) -> Resolved:
    machine, server = settings.machine, settings.server
    chosen = sglang_variants(settings.policies)
    config = server_config(machine, server, machine.model or MODEL)
    check_flags(config.flags, command_line.REFUSED_FLAGS)
    load = resolve_model(config.model, server.weights)
    variants = with_routers(chosen, server, "sglang")
    for variant in variants:
        _check_router(variant, text=server.prompts is Prompts.TEXT)
    sglang = find_sglang()
    if server.replicas > 1:
        gpu_shares(config, server.replicas)
    variants, routers = find_routers(variants, settings)
    longest = command_line.longest_context(config, load) or load.max_context
    engine = SglangEngine(
        kind=SGLANG,
        server=server,
        config=config,
        sglang=sglang,
        longest=Longest.of(longest, load.name, load.max_context, "", more_memory(machine)),
        routers=routers,
    )
    return variants, engine, ()


def _check_router(variant: Variant, *, text: bool) -> None:
    """Raise InvalidInput for a router that needs what SGLang does not have or report."""
    router = variant.router
    if isinstance(router, ForeignRouter) and router.project != "sglang-router":
        raise InvalidInput(
            f"--router {router.name}: is for vLLM; use --engine vllm, or sglang-router"
        )
    if isinstance(router, ForeignRouter) and dict(variant.arguments).get("sessions") and not text:
        raise InvalidInput(
            f"--router {router.name}: does not pass sessions on with token ids; add --prompts "
            "text, or leave out the variants with sessions=true"
        )
    if isinstance(router, NamedRouter) and router.router.needs_costs:
        raise InvalidInput(
            f"--router {router.name}: needs the times of prefills and decode steps, which SGLang "
            "does not report; use --engine vllm, or another router, such as thunderagent"
        )


SGLANG: EngineKind = EngineKind(
    "sglang",
    sglang_engine,
    takes=(
        *("vllm_flags", "weights", "replicas", "router", "ready_within_s", "turn_timeout_s"),
        *("lost_after_s", "stuck_after_s", "prompts"),
    ),
    refuses={
        **OWN_SCHEDULING,
        **OF_VLLM,
        "admission": ", which has its own rule; remove it",
    },
)
