"""Several vLLM servers of one kind at once, booted side by side, each on its share of the machine.

GPUs and CPU cores are split evenly. One that fails, or an interruption, ends the others at once.
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
from servers.vllm.launch.find_vllm import Installed, find_vllm, gpu_names, in_image
from servers.vllm.launch.server import Progress, VllmServer, launch


def launch_replicas(
    wanted: ServerConfig,
    count: int,
    folder: Path,
    *,
    port: int | None = None,
    python: str | None = None,
    ready_within_s: float = 600.0,
    on_progress: Progress | None = None,
) -> list[VllmServer]:
    """One in `folder`, several in its `replica-0`, `replica-1`, … Raises as `launch`."""
    if count == 1:
        return [
            launch(
                wanted,
                folder,
                port=port,
                python=python,
                ready_within_s=ready_within_s,
                on_progress=on_progress,
            )
        ]
    if port is not None:
        raise CannotServe(f"--port {port}: {count} replicas take a free one each; leave it out")
    vllm = find_vllm(python) if wanted.image is None else in_image(python)
    shares = machine_shares(wanted, vllm, count)

    over = threading.Event()

    def going_on(number: int, seconds: float, line: str) -> None:
        if over.is_set():
            raise StartAbandoned
        if number == 0 and on_progress is not None:
            on_progress(seconds, line)

    def start(number: int) -> VllmServer:
        env = {**wanted.env, **shares[number]}
        return launch(
            replace(wanted, env=env),
            folder / f"replica-{number}",
            python=python,
            ready_within_s=ready_within_s,
            on_progress=partial(going_on, number),
        )

    with ThreadPoolExecutor(count) as pool:
        starts = [pool.submit(start, number) for number in range(count)]
        try:
            for started in as_completed(starts):
                started.result()
        except BaseException:
            over.set()
            wait(starts)
            stop(started.result() for started in starts if started.exception() is None)
            raise
    return [started.result() for started in starts]


def stop(servers: Iterable[VllmServer]) -> None:
    for server in servers:
        server.stop()


def machine_shares(wanted: ServerConfig, vllm: Installed, count: int) -> list[dict[str, str]]:
    """Environment of each: which GPUs it sees, or which cores it computes on."""
    if vllm.cpu:
        cores = sorted(os.sched_getaffinity(0))
        each, what, name = len(cores) // count, "cores", "VLLM_CPU_OMP_THREADS_BIND"
        have, need = [str(core) for core in cores], 1
    else:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        have = visible.split(",") if visible else [str(k) for k in range(len(gpu_names()))]
        need, what, name = tensor_parallel(wanted), "GPUs", "CUDA_VISIBLE_DEVICES"
        each = need
    if len(have) < need * count or not each:
        raise CannotServe(
            f"--replicas {count}: they need {need * count} {what}, and {len(have)} are here"
        )
    return [{name: ",".join(have[k * each : (k + 1) * each])} for k in range(count)]
