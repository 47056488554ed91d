"""Starts SGLang on a free port of 127.0.0.1, waits until it is healthy, and stops it.

In: a `ServerConfig`, a scheduler and a folder. Out: a `SglangServer`, and in the folder
`server.log` and `server.json` (its description). The server ends when its parent does, even if that
is killed (`servers.processes`). All waits have a timeout.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from servers.basics.errors import ServerFailed
from servers.processes.loopback import REQUEST_ERRORS, request
from servers.processes.parallel_start import Progress, start_parallel
from servers.processes.port import Port
from servers.processes.supervised import SupervisedProcess
from servers.sglang import command_line
from servers.sglang.failure_cause import failure_cause, last_lines
from servers.sglang.find_sglang import SglangInstallation
from servers.sglang.schedulers import SglangScheduler
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.replicas import gpu_shares
from servers.vllm.models.model_folder import resolve_model

MODULE = "sglang.launch_server"
POLL_S = 0.2
HEALTH_TIMEOUT_S = 25.0
"""Longer than SGLang itself waits for the token by which it checks its health (20 s)."""
MAX_STARTS = 3
"""Maximum number of attempts if another process takes the free port that was chosen."""
TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class SglangInfo:
    """The description of a running server."""

    model: str
    version: str
    kv_tokens: int
    """Tokens that fit into its KV memory."""
    page_tokens: int
    max_model_len: int
    vocabulary: tuple[int, int]
    """The range of token ids for random prompts; the end is exclusive."""
    radix_cache: bool
    flags: tuple[str, ...]


class SglangServer:
    """A running server, and a context manager that stops it: `with launch(…) as server:`."""

    info: SglangInfo

    def __init__(self, process: SupervisedProcess, port: Port, log: Path) -> None:
        self._process, self._port = process, port
        self.log = log
        self.base_url = f"http://127.0.0.1:{port.number}"
        self.pid = process.pid
        """Process id of the supervisor, which leads the process group."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def failure(self) -> ServerFailed | None:
        """Return why the server exited unexpectedly; None while it runs and after `stop`."""
        what = self._process.exit_reason()
        return None if what is None else self.failed(what)

    def failed(self, what: str) -> ServerFailed:
        message = f"SGLang {what}: {failure_cause(self.log)} (log: {self.log})"
        return ServerFailed(message, self.log, last_lines(self.log, TAIL_LINES))

    def get(self, path: str, timeout_s: float = 30.0) -> tuple[int, bytes]:
        """Return the status and the body. Raises one of `loopback.REQUEST_ERRORS`."""
        return request(self._port.number, path, timeout_s=timeout_s)

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL to all descendants, and wait until all have ended."""
        self._process.stop()
        self._port.close()


def launch(
    config: ServerConfig,
    scheduler: SglangScheduler,
    sglang: SglangInstallation,
    folder: Path,
    *,
    ready_within_s: float,
    on_progress: Progress | None = None,
) -> SglangServer:
    """Start a server and wait until it is healthy. Raises ServerFailed."""
    deadline_s = time.monotonic() + ready_within_s
    starts = MAX_STARTS
    while True:
        starts -= 1
        server, vocabulary, flags = _start(config, scheduler, sglang, folder.resolve())
        try:
            _wait_until_healthy(server, deadline_s, on_progress or (lambda *_: None))
            server.info = _info(server, vocabulary, flags)
        except ServerFailed as failed:
            server.stop()
            if not starts or not any("ddress already in use" in line for line in failed.tail):
                raise
        except BaseException:
            server.stop()
            raise
        else:
            description = json.dumps(asdict(server.info), indent=1)
            server.log.with_name("server.json").write_text(description + "\n")
            return server


def launch_replicas(
    config: ServerConfig,
    count: int,
    scheduler: SglangScheduler,
    sglang: SglangInstallation,
    folder: Path,
    *,
    ready_within_s: float,
    on_progress: Progress | None = None,
) -> list[SglangServer]:
    """Start `count` servers, each on a share of the GPUs. One server uses `folder`, several use
    `replica-0`, `replica-1`, … in it. Raises the errors of `launch`, and InvalidInput."""
    shares = gpu_shares(config, count) if count > 1 else [{}]

    def launch_one(number: int, on_progress: Progress) -> SglangServer:
        return launch(
            replace(config, env={**config.env, **shares[number]}),
            scheduler,
            sglang,
            folder if count == 1 else folder / f"replica-{number}",
            ready_within_s=ready_within_s,
            on_progress=on_progress,
        )

    return start_parallel(count, launch_one, on_progress)


def _start(
    config: ServerConfig, scheduler: SglangScheduler, sglang: SglangInstallation, folder: Path
) -> tuple[SglangServer, tuple[int, int], tuple[str, ...]]:
    model = resolve_model(config.model, config.weights)
    folder.mkdir(parents=True, exist_ok=True)
    port = Port()
    try:
        flags = command_line.flags(config, scheduler, model, port.number)
        command = [sglang.python, "-m", MODULE, *flags]
        env = command_line.environment(config, model)
        process = SupervisedProcess(command, env, folder / "server.log")
    except BaseException:
        port.close()
        raise
    return SglangServer(process, port, folder / "server.log"), model.vocabulary, flags


def _wait_until_healthy(server: SglangServer, deadline_s: float, on_progress: Progress) -> None:
    started_s = time.monotonic()
    while True:
        if (failure := server.failure()) is not None:
            raise failure
        with contextlib.suppress(*REQUEST_ERRORS):
            if server.get("/health", timeout_s=HEALTH_TIMEOUT_S)[0] == 200:
                return
        now_s = time.monotonic()
        if now_s > deadline_s:
            raise server.failed(f"was not healthy after {now_s - started_s:.0f} s")
        on_progress(now_s - started_s, (last_lines(server.log, 1) or [""])[0])
        time.sleep(POLL_S)


def _info(server: SglangServer, vocabulary: tuple[int, int], flags: tuple[str, ...]) -> SglangInfo:
    try:
        model = json.loads(server.get("/v1/models")[1])["data"][0]
        resolved = json.loads(server.get("/server_info")[1])
        return SglangInfo(
            model=model["id"],
            version=resolved["version"],
            kv_tokens=int(resolved["max_total_num_tokens"]),
            page_tokens=int(resolved["page_size"]),
            max_model_len=int(model["max_model_len"]),
            vocabulary=vocabulary,
            radix_cache=not resolved["disable_radix_cache"],
            flags=flags,
        )
    except (*REQUEST_ERRORS, LookupError, ValueError, TypeError) as error:
        what = f"is healthy but lacks its description ({type(error).__name__}: {error})"
        raise server.failed(what) from error
