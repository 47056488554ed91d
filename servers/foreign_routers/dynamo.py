"""The command lines of NVIDIA Dynamo (github.com/ai-dynamo/dynamo): mocker workers, the frontend
with one of its routers, and the ThunderAgent router between the two.

Parameters of the routers are their defaults. What depends on the deployment is set: the memory and
the step times of the workers, and that a router waits for all of them. Workers and routers find
each other in a folder, without etcd and NATS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from servers.profiles import Profile

THUNDERAGENT = "thunderagent"
NAMESPACE, AGGREGATED, PREFILL = "turnstile", "backend", "prefill"
STORE, MODEL = "discovery", "model"
"""Folders that all processes share."""
_USE = "is set by the harness; use {} instead"
REFUSED_FLAGS = {
    "--model-path": _USE.format("--model"),
    "--model-name": _USE.format("--model"),
    "--num-workers": _USE.format("--replicas"),
    "--disaggregation-mode": _USE.format("--disaggregate"),
    "--num-gpu-blocks-override": _USE.format("--kv-blocks"),
    "--max-model-len": _USE.format("--max-model-len without the --"),
    "--max-num-seqs": _USE.format("--max-num-seqs without the --"),
    "--max-num-batched-tokens": _USE.format("--step-tokens"),
    "--planner-profile-data": _USE.format("--hardware"),
}
"""Flags of the mocker that settings of ours determine, and what to do instead."""
NOT_INHERITED = ("DYN_", "ETCD_", "NATS_")
"""Variables that change the routers, whose parameters are to be their defaults."""
VOCABULARY = 2048
"""Size of the model's vocabulary. Token ids that mockers generate are below 2000."""
LOG = "DYN_LOG"
ERROR = re.compile(r"\w*(Error|Exception): |\bERROR\b|panicked at")
PREFIX = re.compile(r"^\S+Z +[A-Z]+ [\w:.]+: ")
"""Time, level and module of a message."""


class Worker(NamedTuple):
    """A mocker worker."""

    name: str
    component: str
    port: int
    bootstrap_port: int | None
    """Of a prefill worker: where decode workers ask for the KV of a prompt."""

    @property
    def is_prefill(self) -> bool:
        return self.component == PREFILL


@dataclass(frozen=True, slots=True)
class DynamoDeployment:
    """Settings of the workers and their router."""

    model: str
    profile: Profile
    max_num_seqs: int
    step_tokens: int
    prefill: int = 0
    """Workers for prefill only; the others then only decode."""
    others: int = 1
    kv_gb_per_s: float | None = None
    """Bandwidth of the transfer of KV from prefill to decode workers; None: the mocker's own."""
    flags: tuple[str, ...] = ()
    """Additional flags of each worker."""

    def names(self) -> list[str]:
        kind = "decode" if self.prefill else "worker"
        return [
            *(f"prefill-{index}" for index in range(self.prefill)),
            *(f"{kind}-{index}" for index in range(self.others)),
        ]


def worker_command(
    python: str, deployment: DynamoDeployment, worker: Worker, policy: str, shared: Path
) -> list[str]:
    profile = deployment.profile
    mode = "agg"
    if deployment.prefill:
        mode = "prefill" if worker.is_prefill else "decode"
    flags: list[object] = [
        *("--model-path", shared / MODEL, "--model-name", _worker_model(deployment, policy)),
        *("--endpoint", f"dyn://{NAMESPACE}.{worker.component}.generate"),
        *("--disaggregation-mode", mode),
        *("--num-gpu-blocks-override", profile.kv_blocks, "--block-size", profile.block_tokens),
        *("--max-model-len", profile.max_model_len),
        *("--max-num-seqs", deployment.max_num_seqs),
        *("--max-num-batched-tokens", deployment.step_tokens),
        *("--planner-profile-data", shared / step_times(worker)),
        *("--kv-bytes-per-token", profile.kv_bytes_per_token),
    ]
    if worker.bootstrap_port is not None:
        flags += ["--bootstrap-ports", worker.bootstrap_port]
    if deployment.prefill and deployment.kv_gb_per_s is not None:
        flags += ["--kv-transfer-bandwidth", deployment.kv_gb_per_s]
    return [python, "-m", "dynamo.mocker", *map(str, flags), *deployment.flags]


def step_times(worker: Worker) -> str:
    """Return the name of the file with the worker's step times."""
    return "prefill-times.npz" if worker.is_prefill else "step-times.npz"


def frontend_command(
    python: str, deployment: DynamoDeployment, policy: str, port: int
) -> list[str]:
    """Under `thunderagent` the frontend sends all turns to the router of that name."""
    mode = "round-robin" if policy == THUNDERAGENT else policy
    workers = 1 if policy == THUNDERAGENT else deployment.others
    flags = ["--http-host", "127.0.0.1", "--http-port", port, "--router-mode", mode]
    flags += ["--router-min-initial-workers", workers]
    return [python, "-m", "dynamo.frontend", *map(str, flags)]


def thunderagent_command(python: str, deployment: DynamoDeployment, shared: Path) -> list[str]:
    flags: list[object] = [
        *("--endpoint", f"{NAMESPACE}.{AGGREGATED}.generate"),
        *("--router-block-size", deployment.profile.block_tokens),
        *("--model-name", deployment.model, "--model-path", shared / MODEL),
    ]
    return [python, "-m", "dynamo.thunderagent_router", *map(str, flags)]


def environment(
    inherited: Mapping[str, str], shared: Path, port: int | None = None
) -> dict[str, str]:
    """Return the environment of a process. `port`: on which a worker takes turns."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.lower().endswith("_proxy")
        and (name == LOG or not name.startswith(NOT_INHERITED))
    }
    return {
        **kept,
        LOG: inherited.get(LOG, "warn,__main__=info,router=info"),
        "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(shared / STORE),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "DYN_EVENT_PLANE_HOST": "127.0.0.1",
        "DYN_HTTP_RPC_HOST": "127.0.0.1",
        **({} if port is None else {"DYN_TCP_RPC_PORT": str(port)}),
        "HF_HUB_OFFLINE": "1",
        # The frontend keeps a copy of the model's description in the first, and workers leave a
        # file in the second.
        "HOME": str(shared),
        "TMPDIR": str(shared),
    }


def worker_ids(health: Mapping[str, object], workers: Sequence[Worker]) -> dict[int, int]:
    """Return the index in `workers` of each that the frontend knows, by its id in Dynamo. `health`:
    what the frontend answers at /health."""
    indices = {worker.port: index for index, worker in enumerate(workers)}
    found = {}
    for id, address in _instances(health):
        port = address.partition("/")[0].rpartition(":")[2]
        if port.isdecimal() and int(port) in indices:
            found[id] = indices[int(port)]
    return found


def _instances(health: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    instances = health.get("instances")
    for instance in instances if isinstance(instances, list) else []:
        if instance["endpoint"] == "generate":
            yield instance["instance_id"], instance["transport"]["tcp"]


def _worker_model(deployment: DynamoDeployment, policy: str) -> str:
    """Return the name under which the workers serve the model. That of clients belongs to the
    ThunderAgent router, if there is one."""
    return f"{deployment.model}-workers" if policy == THUNDERAGENT else deployment.model
