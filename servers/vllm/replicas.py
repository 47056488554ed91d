"""Several vLLM servers of one kind at once, booted side by side, each on its share of the machine.

GPUs and CPU cores are split evenly. One that fails takes the others with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from servers.vllm.command import CannotServe, Wanted, tensor_parallel
from servers.vllm.installed import Installed, find_vllm, gpu_names, in_image
from servers.vllm.launcher import Progress, VllmServer, launch


def launch_replicas(
    wanted: Wanted,
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

    def start(number: int) -> VllmServer:
        env = {**wanted.env, **shares[number]}
        return launch(
            replace(wanted, env=env),
            folder / f"replica-{number}",
            python=python,
            ready_within_s=ready_within_s,
            on_progress=on_progress if number == 0 else None,
        )

    with ThreadPoolExecutor(count) as pool:
        starts = [pool.submit(start, number) for number in range(count)]
        failures = [started.exception() for started in starts]
    first = next((failure for failure in failures if failure is not None), None)
    if first is not None:
        stop(started.result() for started, f in zip(starts, failures, strict=True) if f is None)
        raise first
    return [started.result() for started in starts]


def stop(servers: Iterable[VllmServer]) -> None:
    for server in servers:
        server.stop()


def machine_shares(wanted: Wanted, vllm: Installed, count: int) -> list[dict[str, str]]:
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
