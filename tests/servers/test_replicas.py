"""The share of the machine that each of several servers gets."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from servers.basics.errors import InvalidInput
from servers.processes import supervised
from servers.vllm.launch import replicas
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.find_vllm import VllmInstallation
from servers.vllm.launch.replicas import launch_replicas, machine_shares
from tests.servers.substitute_vllm import living, substitute_vllm

ON_CPU = VllmInstallation("python", "0.32.0", True, None, True)
ON_GPU = VllmInstallation("python", "0.32.0", False, None, True)


def test_gpus_are_split_by_what_one_copy_of_the_model_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(replicas, "gpu_names", lambda: ["NVIDIA H100 80GB HBM3"] * 8)
    shares = machine_shares(ServerConfig(model="llama-3.1-70b"), ON_GPU, 2)  # four GPUs each
    assert shares == [{"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}]
    with pytest.raises(InvalidInput, match=r"--replicas 3: 12 GPUs are needed, and .* has 8"):
        machine_shares(ServerConfig(model="llama-3.1-70b"), ON_GPU, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")  # other users have the others
    shares = machine_shares(ServerConfig(gpus=1), ON_GPU, 2)
    assert shares == [{"CUDA_VISIBLE_DEVICES": "5"}, {"CUDA_VISIBLE_DEVICES": "7"}]


def test_cores_are_split_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 4, 5, 6})
    assert machine_shares(ServerConfig(), ON_CPU, 2) == [
        {"VLLM_CPU_OMP_THREADS_BIND": "2,3"},
        {"VLLM_CPU_OMP_THREADS_BIND": "4,5"},
    ]
    with pytest.raises(InvalidInput, match=r"--replicas 6: 6 cores are needed, and .* has 5"):
        machine_shares(ServerConfig(), ON_CPU, 6)


def test_an_interruption_while_replicas_start_ends_them_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(supervised, "GRACE_S", 0.3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    reported_s: list[float] = []

    def interrupt(seconds: float, _line: str) -> None:
        if not reported_s:
            threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
        reported_s.append(seconds)

    started_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch_replicas(
            ServerConfig(),
            2,
            tmp_path / "run",
            python=substitute_vllm(tmp_path, "hangs"),
            ready_within_s=600,
            on_progress=interrupt,
        )
    assert time.monotonic() - started_s < 60
    assert reported_s
    assert living(tmp_path) == []
