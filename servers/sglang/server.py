"""Starts SGLang on a free port of 127.0.0.1, waits until it is healthy, and stops it.

In: a `ServerConfig`, a scheduler and a folder. Out: a `SglangServer`, and in the folder
`server.log` and `server.json` (its description). The server ends when its parent does, even if that
is killed (`servers.processes`). All waits have a timeout.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from servers.processes.environments import Installation
from servers.processes.parallel_start import Progress, start_parallel
from servers.processes.server import UNUSABLE, ServerProcess, last_error, launch, read_end
from servers.sglang import command_line
from servers.sglang.schedulers import SglangScheduler
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.replicas import gpu_shares
from servers.vllm.models.model_folder import ResolvedModel, resolve_model

PREFIX = re.compile(r"^\[[\d-]+ [\d:]+[^\]]*\] ")
ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|error)\b: ")


def log_lines(log: Path) -> list[str]:
    return [PREFIX.sub("", line) for line in read_end(log)]


MODULE = "sglang.launch_server"
HEALTH_TIMEOUT_S = 25.0
"""Longer than SGLang itself waits for the token by which it checks its health (20 s)."""


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


class SglangServer(ServerProcess):
    info: SglangInfo
    _flags: tuple[str, ...]
    _model: ResolvedModel

    def __init__(
        self,
        config: ServerConfig,
        scheduler: SglangScheduler,
        sglang: Installation,
        folder: Path,
    ) -> None:
        super().__init__("SGLang", folder / "server.log")
        self._config, self._scheduler, self._sglang = config, scheduler, sglang

    def start(self) -> None:
        config = self._config
        self._model = resolve_model(config.model, config.weights)
        self._flags = command_line.flags(config, self._scheduler, self._model, self.port)
        command = [self._sglang.python, "-m", MODULE, *self._flags]
        self.supervise(command, command_line.environment(config, self._model))

    def is_healthy(self) -> bool:
        return self.request("/health", timeout_s=HEALTH_TIMEOUT_S)[0] == 200

    def cause(self, log: Path) -> str:
        """Return the last error. The main process prints more when a failed scheduler ends it."""
        return last_error(log_lines(log), ERROR, PREFIX)

    def lines(self, log: Path) -> list[str]:
        return log_lines(log)

    def describe(self) -> None:
        try:
            model = json.loads(self.request("/v1/models")[1])["data"][0]
            resolved = json.loads(self.request("/server_info")[1])
            self.info = SglangInfo(
                model=model["id"],
                version=resolved["version"],
                kv_tokens=int(resolved["max_total_num_tokens"]),
                page_tokens=int(resolved["page_size"]),
                max_model_len=int(model["max_model_len"]),
                vocabulary=self._model.vocabulary,
                radix_cache=not resolved["disable_radix_cache"],
                flags=self._flags,
            )
        except UNUSABLE as error:
            what = f"is healthy but lacks its description ({type(error).__name__}: {error})"
            raise self.failed(what) from error
        description = json.dumps(asdict(self.info), indent=1)
        self.log.with_name("server.json").write_text(description + "\n")


def launch_replicas(
    config: ServerConfig,
    count: int,
    scheduler: SglangScheduler,
    sglang: Installation,
    folder: Path,
    *,
    ready_within_s: float,
    on_progress: Progress | None = None,
) -> list[SglangServer]:
    """Start `count` servers, each on a share of the GPUs. One server uses `folder`, several use
    `replica-0`, `replica-1`, … in it. Raises ServerFailed and InvalidInput."""
    shares = gpu_shares(config, count) if count > 1 else [{}]

    def launch_one(number: int, on_progress: Progress) -> SglangServer:
        own = replace(config, env={**config.env, **shares[number]})
        own_folder = folder if count == 1 else folder / f"replica-{number}"
        return launch(
            lambda: SglangServer(own, scheduler, sglang, own_folder.resolve()),
            within_s=ready_within_s,
            on_progress=on_progress,
        )

    return start_parallel(count, launch_one, on_progress)
