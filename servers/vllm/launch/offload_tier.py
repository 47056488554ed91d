"""Offload tiers of vLLM: the flags that each kind adds, and the server process that it needs.

`lmcache`: an LMCache server process with DRAM and an optional disk tier, to which vLLM connects
with `LMCacheMPConnector`. `native`: vLLM's `OffloadingConnector`, with DRAM in vLLM's process.
Gigabytes are 10⁹ bytes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servers.basics.errors import TierFailed, Unavailable
from servers.processes.loopback import REQUEST_ERRORS, request
from servers.processes.port import Port
from servers.processes.supervised import SupervisedProcess
from servers.vllm.launch.failure_cause import failure_cause
from servers.vllm.launch.find_vllm import VllmInstallation

CHUNK_TOKENS = 256
"""LMCache's default. The number of hit tokens is a multiple of it."""
POLL_S = 0.2
READY_TIMEOUT_S = 120.0
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Offloading:
    """The settings of a tier; sizes in GB (10⁹ bytes)."""

    kind: Literal["lmcache", "native"]
    dram_gb: float
    ssd_gb: float = 0.0


class Tier:
    """A running tier, and the flags that connect vLLM to it."""

    def __init__(self, flags: tuple[str, ...], ports: Sequence[Port] = ()) -> None:
        self.flags = flags
        self.server: SupervisedProcess | None = None
        """The tier's server process; None for `native`."""
        self._ports = ports

    def failure(self) -> str | None:
        if self.server is None or (reason := self.server.exit_reason()) is None:
            return None
        return f"LMCache {reason}: {failure_cause(self.server.log)} (log: {self.server.log})"

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
        for port in self._ports:
            port.close()


def check_tier(offloading: Offloading, vllm: VllmInstallation) -> None:
    if offloading.dram_gb <= 0:
        raise Unavailable(f"--offload-gb {offloading.dram_gb:g}: must be above 0 for a tier")
    if offloading.kind == "lmcache" and vllm.lmcache is None:
        raise Unavailable(
            f"{vllm.python} has no LMCache; get it with: {vllm.python} -m pip install lmcache "
            "(for CPUs with --no-deps, and sortedcontainers aiofiles), or use vLLM's native "
            "offloading: add +native to the policy"
        )


def start_tier(offloading: Offloading, vllm: VllmInstallation, folder: Path) -> Tier:
    check_tier(offloading, vllm)
    if offloading.kind == "native":
        return Tier(_native_flags(offloading, vllm))
    port, http_port = ports = (Port(), Port())
    disk = folder / "lmcache-disk"
    tier = Tier(_lmcache_flags(port.number), ports=ports)
    try:
        tier.server = SupervisedProcess(
            [
                vllm.python,
                "-m",
                "lmcache.cli.main",
                "server",
                *_server_flags(offloading, port.number, http_port.number, disk),
            ],
            {**os.environ, "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"},
            folder / "lmcache.log",
            disk,
        )
        _wait_until_healthy(tier, http_port.number, tier.server.log)
    except BaseException:
        tier.stop()
        raise
    return tier


def _server_flags(offloading: Offloading, port: int, http_port: int, disk: Path) -> list[str]:
    flags = [
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--http-host", "127.0.0.1", "--http-port", str(http_port)),
        *("--l1-size-gb", f"{offloading.dram_gb * 1e9 / GIB:.6f}"),
        *("--eviction-policy", "LRU", "--chunk-size", str(CHUNK_TOKENS)),
        *("--supported-transfer-mode", "auto", "--disable-metrics"),
    ]
    if offloading.ssd_gb:
        disk.mkdir(parents=True, exist_ok=True)
        flags += ["--l2-adapter", json.dumps({"type": "fs", "base_path": str(disk)})]
    return flags


def _lmcache_flags(port: int) -> tuple[str, ...]:
    extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}
    return _connector_flags("LMCacheMPConnector", extra)


def _native_flags(offloading: Offloading, vllm: VllmInstallation) -> tuple[str, ...]:
    extra: dict[str, object] = {
        "cpu_bytes_to_use": int(offloading.dram_gb * 1e9),
        "offload_prompt_only": False,  # an agent's next prompt contains the answer
    }
    if vllm.cpu:
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


def _wait_until_healthy(tier: Tier, http_port: int, log: Path) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if (failure := tier.failure()) is not None:
            raise TierFailed(failure)
        with suppress(*REQUEST_ERRORS):
            if request(http_port, "/healthcheck", timeout_s=2.0)[0] == 200:
                return
        time.sleep(POLL_S)
    raise TierFailed(f"LMCache was not healthy after {READY_TIMEOUT_S:g} s (log: {log})")
