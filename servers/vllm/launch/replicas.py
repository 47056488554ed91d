"""Starts several vLLM servers with one configuration in parallel, each on a share of the machine.

GPUs and CPU cores are split evenly. If one server fails or the start is interrupted, all are
stopped.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from servers.basics.errors import InvalidInput
from servers.processes.parallel_start import Progress, start_parallel
from servers.vllm.launch.command_line import ServerConfig, tensor_parallel
from servers.vllm.launch.find_vllm import VllmInstallation, find_vllm, gpu_names, vllm_in_image
from servers.vllm.launch.server import VllmServer, launch


def launch_replicas(
    config: ServerConfig,
    count: int,
    folder: Path,
    *,
    port: int | None = None,
    python: str | None = None,
    ready_within_s: float,
    on_progress: Progress | None = None,
) -> list[VllmServer]:
    """Start `count` servers. One server uses `folder`, several use `replica-0`, `replica-1`, … in
    it. Raises the errors of `launch`."""
    if count > 1 and port is not None:
        raise InvalidInput(f"--port {port}: {count} replicas need different ports; remove --port")
    shares: list[dict[str, str]] = [{}]
    if count > 1:
        vllm = find_vllm(python) if config.image is None else vllm_in_image(python)
        shares = machine_shares(config, vllm, count)

    def launch_one(number: int, on_progress: Progress) -> VllmServer:
        return launch(
            replace(config, env={**config.env, **shares[number]}),
            folder if count == 1 else folder / f"replica-{number}",
            port=port,
            python=python,
            ready_within_s=ready_within_s,
            on_progress=on_progress,
        )

    return start_parallel(count, launch_one, on_progress)


def machine_shares(
    config: ServerConfig, vllm: VllmInstallation, count: int
) -> list[dict[str, str]]:
    """Return the environment variable that assigns GPUs or CPU cores, for each server."""
    if not vllm.cpu:
        return gpu_shares(config, count)
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
    share = max(len(cores) // count, 1)
    return _shares("VLLM_CPU_OMP_THREADS_BIND", "cores", cores, share, count)


def gpu_shares(config: ServerConfig, count: int) -> list[dict[str, str]]:
    """Return the environment variable that assigns GPUs, for each server."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(k) for k in range(len(gpu_names()))]
    return _shares("CUDA_VISIBLE_DEVICES", "GPUs", gpus, tensor_parallel(config), count)


def _shares(
    name: str, unit: str, available: list[str], share: int, count: int
) -> list[dict[str, str]]:
    needed = count if unit == "cores" else share * count
    if len(available) < needed:
        raise InvalidInput(
            f"--replicas {count}: {needed} {unit} are needed, and this machine has {len(available)}"
        )
    return [{name: ",".join(available[k * share : (k + 1) * share])} for k in range(count)]
