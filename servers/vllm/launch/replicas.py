"""Starts several vLLM servers with one configuration in parallel, each on a share of the machine.

GPUs and CPU cores are split evenly. If one server fails or the start is interrupted, all are
stopped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from dataclasses import replace
from functools import partial
from pathlib import Path

from servers.errors import CannotServe, StartAbandoned
from servers.vllm.launch.command_line import ServerConfig, tensor_parallel
from servers.vllm.launch.find_vllm import VllmInstallation, find_vllm, gpu_names, vllm_in_image
from servers.vllm.launch.server import Progress, VllmServer, launch


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
    if count == 1:
        return [
            launch(
                config,
                folder,
                port=port,
                python=python,
                ready_within_s=ready_within_s,
                on_progress=on_progress,
            )
        ]
    if port is not None:
        raise CannotServe(f"--port {port}: {count} replicas need different ports; remove --port")
    vllm = find_vllm(python) if config.image is None else vllm_in_image(python)
    shares = machine_shares(config, vllm, count)

    abandoned = threading.Event()

    def report(number: int, seconds: float, line: str) -> None:
        if abandoned.is_set():
            raise StartAbandoned
        if number == 0 and on_progress is not None:
            on_progress(seconds, line)

    def launch_one(number: int) -> VllmServer:
        env = {**config.env, **shares[number]}
        return launch(
            replace(config, env=env),
            folder / f"replica-{number}",
            python=python,
            ready_within_s=ready_within_s,
            on_progress=partial(report, number),
        )

    with ThreadPoolExecutor(count) as pool:
        starts = [pool.submit(launch_one, number) for number in range(count)]
        try:
            for completed in as_completed(starts):
                completed.result()
        except BaseException:
            abandoned.set()
            wait(starts)
            stop(start.result() for start in starts if start.exception() is None)
            raise
    return [start.result() for start in starts]


def stop(servers: Iterable[VllmServer]) -> None:
    for server in servers:
        server.stop()


def machine_shares(
    config: ServerConfig, vllm: VllmInstallation, count: int
) -> list[dict[str, str]]:
    """Return the environment variable that assigns GPUs or CPU cores, for each server."""
    if vllm.cpu:
        available = [str(core) for core in sorted(os.sched_getaffinity(0))]
        share, unit, name = max(len(available) // count, 1), "cores", "VLLM_CPU_OMP_THREADS_BIND"
        needed = count
    else:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        available = visible.split(",") if visible else [str(k) for k in range(len(gpu_names()))]
        share, unit, name = tensor_parallel(config), "GPUs", "CUDA_VISIBLE_DEVICES"
        needed = share * count
    if len(available) < needed:
        raise CannotServe(
            f"--replicas {count}: {needed} {unit} are needed, and this machine has {len(available)}"
        )
    return [{name: ",".join(available[k * share : (k + 1) * share])} for k in range(count)]
