"""The engine `dynamo-mocker`: NVIDIA Dynamo's routers, live, over its mocker workers.

A mocker takes the time that a step takes on the machine of --hardware, in real time, and keeps a
paged prefix cache, but computes nothing. Each cell starts new workers, a frontend, and the router
of its variant. The workers schedule as stock vLLM does, so `fcfs` is the only policy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import structs

from harness.cells.job import Job
from harness.engines.base import OF_VLLM, OWN_SCHEDULING, EngineKind, Resolved, engine_count
from harness.engines.foreign_router import find_routers
from harness.engines.live_engine import LiveEngine
from harness.engines.sim import OfSimMachine, SimEngine, resolve_profile, sim_engine
from harness.load.settings import Server, SweepSettings
from harness.replay.dynamo import Frontend
from harness.replay.live_server import LiveServer
from servers.basics.errors import InvalidInput, check_flags
from servers.disaggregation import parse_splits
from servers.foreign_routers.dynamo import REFUSED_FLAGS, THUNDERAGENT, DynamoDeployment
from servers.foreign_routers.dynamo_process import DynamoCluster
from servers.processes.environments import Installation
from servers.processes.server import launch
from servers.profiles import hardware
from servers.records.done import DoneRecord
from servers.records.settings import EngineSettings, ServerRecord
from servers.routing import FOREIGN, ForeignRouter
from servers.variants import Variant, behind_routers, variants
from servers.vllm.models.model_folder import BYTES

NAME, PROJECT = "dynamo-mocker", "dynamo"
DEFAULT_ROUTER = "dynamo:kv"


class Workers(NamedTuple):
    prefill: int
    """Workers for prefill only; the others then only decode."""
    others: int

    @property
    def total(self) -> int:
        return self.prefill + self.others


@dataclass(frozen=True, slots=True)
class DynamoEngine(OfSimMachine, LiveEngine):
    sim: SimEngine
    workers: Workers
    dynamo: Installation
    kv_gb_per_s: float | None
    """Bandwidth from prefill to decode workers; None if unknown, and the mocker has its own."""

    def describe(self) -> str:
        prefill, others = self.workers
        roles = f" ({prefill} for prefill, {others} for decode)" if prefill else ""
        return (
            f"engine {NAME}: Dynamo {self.dynamo.version}, live; mockers instead of workers: "
            f"{self.workers.total}{roles}, each as fast as {self.model} on {self.sim.machine} "
            f"({self.sim.profile.provenance} profile); this run uses no GPU"
        )

    def settings(self, variant: Variant | None = None) -> EngineSettings:
        """Return the settings, with the number of workers under `server`."""
        prefill, others = self.workers
        server = ServerRecord(
            dynamo=self.dynamo.version,
            replicas=others,
            disaggregate=f"{prefill}P{others}D" if prefill else None,
            kv_gb_per_s=self.kv_gb_per_s if prefill else None,
            flags=self.server.vllm_flags,
            turn_timeout_s=self.server.turn_timeout_s,
        )
        gpus = None if self.sim.gpus is None else self.sim.gpus * self.workers.total
        settings = self.sim.settings(variant)
        return structs.replace(settings, engine=NAME, gpus=gpus, server=server)

    def serve(self, job: Job) -> DoneRecord:
        router, profile, limits = job.variant.router, self.sim.profile, self.sim.limits
        if not isinstance(router, ForeignRouter):
            raise TypeError(f"{job.variant.name} has no router of Dynamo")
        deployment = DynamoDeployment(
            self.model,
            profile,
            limits.max_num_seqs,
            limits.step_tokens,
            self.workers.prefill,
            self.workers.others,
            self.kv_gb_per_s,
            self.server.vllm_flags,
        )
        folder = job.folder / "server"
        cluster = launch(
            lambda: DynamoCluster(deployment, router.policy, self.dynamo, folder),
            within_s=self.server.ready_within_s,
            on_progress=lambda seconds, _: job.on_stage(f"starting Dynamo, {seconds:.0f} s"),
        )
        with cluster:
            frontend = Frontend(
                cluster.workers,
                disaggregated=bool(self.workers.prefill),
                block_tokens=profile.block_tokens,
                has_sessions=router.policy == THUNDERAGENT,
            )
            server = LiveServer(cluster.base_url, dynamo=frontend)
            service = self.service([server], self.model, BYTES, job.seed)
            done = self.replay(job, service, [cluster])
        done.kv_blocks = profile.kv_blocks
        done.block_tokens = profile.block_tokens
        done.max_model_len = profile.max_model_len
        done.prefix_caching = True
        return done


def resolve_dynamo(settings: SweepSettings) -> Resolved:
    server = settings.server
    check_flags(server.vllm_flags, REFUSED_FLAGS)
    workers = _workers(server)
    chosen, installed = find_routers(_variants(settings.policies, server), settings)
    found = resolve_profile(settings.machine)
    sim = replace(sim_engine(settings, chosen, found), replicas=1)
    if sim.profile.kv_groups != (None,):
        raise InvalidInput(
            f"--model {sim.model}: has layers with a sliding window, chunks or a state, which the "
            "mocker does not model; use --engine sim, or a model without them"
        )
    engine = DynamoEngine(
        kind=DYNAMO_MOCKER,
        server=server,
        sim=sim,
        workers=workers,
        dynamo=installed[PROJECT],
        kv_gb_per_s=_kv_gb_per_s(sim) if workers.prefill else None,
    )
    return chosen, engine, ()


def _workers(server: Server) -> Workers:
    engines = engine_count(server)
    if server.disaggregate is None:
        return Workers(0, engines)
    splits = parse_splits(server.disaggregate)
    if len(splits) > 1 or splits[0] is None:
        raise InvalidInput(
            f"--disaggregate {server.disaggregate}: a list is compared in virtual time only; give "
            "one split, such as 1P1D"
        )
    return Workers(splits[0].prefill, splits[0].decode)


def _variants(policies: str, server: Server) -> tuple[Variant, ...]:
    if policies.strip() not in ("all", "fcfs"):
        raise InvalidInput(
            f"--policies {policies}: the workers of --engine {NAME} schedule as stock vLLM does, "
            "and run no other policy; use fcfs"
        )
    behind = tuple(behind_routers(variants("fcfs"), server.router or DEFAULT_ROUTER))
    for router in (variant.router for variant in behind):
        if not isinstance(router, ForeignRouter) or router.project != PROJECT:
            offered = ", ".join(f"{PROJECT}:{policy}" for policy in FOREIGN[PROJECT].policies)
            name = "" if router is None else router.name
            raise InvalidInput(
                f"--router {name}: --engine {NAME} runs the routers of Dynamo only: {offered}"
            )
        if server.disaggregate is not None and router.policy == THUNDERAGENT:
            raise InvalidInput(
                f"--router {router.name}: sends turns to one kind of workers; remove "
                f"--disaggregate, or use {DEFAULT_ROUTER}"
            )
    return behind


def _kv_gb_per_s(sim: SimEngine) -> float | None:
    """Return the bandwidth between the GPUs of two workers, over their links or PCIe."""
    if sim.gpus is None:
        return None
    gpu = sim.gpu or hardware(sim.hardware)
    return (gpu.link_bytes_per_s or gpu.pcie_bytes_per_s) * sim.gpus / 1e9


DYNAMO_MOCKER: EngineKind = EngineKind(
    NAME,
    resolve_dynamo,
    takes=(
        *("vllm_flags", "replicas", "router", "disaggregate"),
        *("ready_within_s", "turn_timeout_s", "lost_after_s", "stuck_after_s"),
    ),
    refuses={
        **OWN_SCHEDULING,
        **OF_VLLM,
        "admission": ", whose workers have a rule of their own; remove it",
    },
)
