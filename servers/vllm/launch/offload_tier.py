"""Offload tiers of vLLM: the flags that each kind adds, and the server process that it needs.

`lmcache`: an LMCache server process with DRAM and an optional disk tier, to which vLLM connects
with `LMCacheMPConnector`. `native`: vLLM's `OffloadingConnector`, with DRAM in vLLM's process.
Gigabytes are 10⁹ bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servers.basics.errors import Unavailable
from servers.processes.server import ServerProcess, launch
from servers.vllm.launch.failure_cause import failure_cause
from servers.vllm.launch.find_vllm import VllmInstallation

CHUNK_TOKENS = 256
"""LMCache's default. The number of hit tokens is a multiple of it."""
READY_TIMEOUT_S = 120.0
GIB = 2**30


@dataclass(frozen=True, slots=True)
class OffloadTier:
    """The settings of a tier; sizes in GB (10⁹ bytes)."""

    kind: Literal["lmcache", "native"]
    dram_gb: float
    ssd_gb: float = 0.0


class LmcacheServer(ServerProcess):
    def __init__(self, tier: OffloadTier, python: str, folder: Path) -> None:
        super().__init__("LMCache", folder / "lmcache.log")
        self._tier, self._python, self._disk = tier, python, folder / "lmcache-disk"
        self.cache_port = self.reserve_port()

    def start(self) -> None:
        flags = _server_flags(self._tier, self.cache_port, self.port, self._disk)
        env = {**os.environ, "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
        command = [self._python, "-m", "lmcache.cli.main", "server", *flags]
        self.supervise(command, env, self._disk)

    def is_healthy(self) -> bool:
        return self.request("/healthcheck", timeout_s=2.0)[0] == 200

    def cause(self, log: Path) -> str:
        return failure_cause(log)


def check_tier(tier: OffloadTier, vllm: VllmInstallation) -> None:
    if tier.dram_gb <= 0:
        raise Unavailable(f"--offload-gb {tier.dram_gb:g}: must be above 0 for a tier")
    if tier.kind == "lmcache" and vllm.lmcache is None:
        raise Unavailable(
            f"{vllm.python} has no LMCache; get it with: {vllm.python} -m pip install lmcache "
            "(for CPUs with --no-deps, and sortedcontainers aiofiles), or use vLLM's native "
            "offloading: add +native to the policy"
        )


def start_tier(
    tier: OffloadTier, vllm: VllmInstallation, folder: Path
) -> tuple[tuple[str, ...], LmcacheServer | None]:
    """Return the flags that connect vLLM to the tier, and the tier's server unless it is `native`.

    Raises Unavailable and ServerFailed.
    """
    check_tier(tier, vllm)
    if tier.kind == "native":
        return native_flags(tier, on_cpu=vllm.cpu), None
    server = launch(lambda: LmcacheServer(tier, vllm.python, folder), within_s=READY_TIMEOUT_S)
    return _lmcache_flags(server.cache_port), server


def _server_flags(tier: OffloadTier, port: int, http_port: int, disk: Path) -> list[str]:
    flags = [
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--http-host", "127.0.0.1", "--http-port", str(http_port)),
        *("--l1-size-gb", f"{tier.dram_gb * 1e9 / GIB:.6f}"),
        *("--eviction-policy", "LRU", "--chunk-size", str(CHUNK_TOKENS)),
        *("--supported-transfer-mode", "auto", "--disable-metrics"),
    ]
    if tier.ssd_gb:
        disk.mkdir(parents=True, exist_ok=True)
        flags += ["--l2-adapter", json.dumps({"type": "fs", "base_path": str(disk)})]
    return flags


def _lmcache_flags(port: int) -> tuple[str, ...]:
    extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}
    return _connector_flags("LMCacheMPConnector", extra)


def native_flags(tier: OffloadTier, *, on_cpu: bool) -> tuple[str, ...]:
    extra: dict[str, object] = {
        "cpu_bytes_to_use": int(tier.dram_gb * 1e9),
        "offload_prompt_only": False,  # an agent's next prompt contains the answer
    }
    if on_cpu:
        extra |= {
            "spec_name": "MemcpySpec",
            "spec_module_path": "servers.vllm.launch.memcpy_offload",
        }
    return _connector_flags("OffloadingConnector", extra)


def _connector_flags(connector: str, extra: Mapping[str, object]) -> tuple[str, ...]:
    transfer = {
        "kv_connector": connector,
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }
    return ("--kv-transfer-config", json.dumps(transfer))
