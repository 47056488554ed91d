"""Starts several vLLM servers with one configuration in parallel, each on a share of the machine.

GPUs and CPU cores are split evenly. If one server fails, or we are interrupted, all are stopped.
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
    """Uses `folder` for one server, and `replica-0`, `replica-1`, … in it for several.

    Raises as `launch`.
    """
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
        raise CannotServe(f"--port {port}: {count} replicas need a port each; remove --port")
    vllm = find_vllm(python) if config.image is None else vllm_in_image(python)
    shares = machine_shares(config, vllm, count)

    abandoned = threading.Event()

    def report(number: int, seconds: float, line: str) -> None:
        if abandoned.is_set():
            raise StartAbandoned
        if number == 0 and on_progress is not None:
            on_progress(seconds, line)

    def start(number: int) -> VllmServer:
        env = {**config.env, **shares[number]}
        return launch(
            replace(config, env=env),
            folder / f"replica-{number}",
            python=python,
            ready_within_s=ready_within_s,
            on_progress=partial(report, number),
        )

    with ThreadPoolExecutor(count) as pool:
        starts = [pool.submit(start, number) for number in range(count)]
        try:
            for started in as_completed(starts):
                started.result()
        except BaseException:
            abandoned.set()
            wait(starts)
            stop(started.result() for started in starts if started.exception() is None)
            raise
    return [started.result() for started in starts]


def stop(servers: Iterable[VllmServer]) -> None:
    for server in servers:
        server.stop()


def machine_shares(
    config: ServerConfig, vllm: VllmInstallation, count: int
) -> list[dict[str, str]]:
    """The environment variables that give each server its GPUs or its CPU cores."""
    if vllm.cpu:
        cores = sorted(os.sched_getaffinity(0))
        each, unit, name = len(cores) // count, "cores", "VLLM_CPU_OMP_THREADS_BIND"
        available, need = [str(core) for core in cores], 1
    else:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        available = visible.split(",") if visible else [str(k) for k in range(len(gpu_names()))]
        need, unit, name = tensor_parallel(config), "GPUs", "CUDA_VISIBLE_DEVICES"
        each = need
    if (has := len(available)) < need * count or not each:
        raise CannotServe(
            f"--replicas {count}: they need {need * count} {unit}, and this machine has {has}"
        )
    return [{name: ",".join(available[k * each : (k + 1) * each])} for k in range(count)]
