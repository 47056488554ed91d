"""Values for the Helm chart of vLLM's production stack (version 0.1.12).

In: the arguments of `vllm serve`. Out: values of `servingEngineSpec` and `routerSpec`. The chart
has a router of its own, which keeps the requests with the same value of one header on one engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SESSION_HEADER = "X-Session-ID"


def chart_values(
    name: str,
    image: str,
    arguments: Sequence[str],
    replicas: int,
    environment: Sequence[dict[str, Any]],
    install: tuple[str, Sequence[str]] | None,
) -> dict[str, Any]:
    """Return the values. `arguments` begin with the model and the size of tensor parallelism.
    `install`: a folder for Python packages, and the command that fills it."""
    model, _, gpus, *flags = arguments
    repository, _, tag = image.rpartition(":")
    if not repository or "/" in tag:  # a registry's port, or no colon
        repository, tag = image, "latest"
    spec: dict[str, Any] = {
        "name": name,
        "repository": repository,
        "tag": tag,
        "modelURL": model,
        "replicaCount": replicas,
        "resources": {"limits": {"nvidia.com/gpu": int(gpus)}},
        # The chart sets PROMETHEUS_MULTIPROC_DIR.
        "vllmConfig": {
            "enablePrefixCaching": True,
            "tensorParallelSize": int(gpus),
            "extraArgs": flags,
        },
        "env": list(environment),
    }
    if install is not None:
        folder, command = install
        mount = {"name": name, "mountPath": folder}
        spec["env"].append({"name": "PYTHONPATH", "value": folder})
        spec["extraVolumes"] = [{"name": name, "emptyDir": {}}]
        spec["extraVolumeMounts"] = [mount]
        spec["initContainer"] = {
            "name": "plugin",
            "image": image,
            "command": list(command),
            "extraVolumeMounts": [mount],
        }
    routing = {"routingLogic": "session", "sessionKey": SESSION_HEADER}
    router = routing if replicas > 1 else {"routingLogic": "roundrobin"}
    return {"servingEngineSpec": {"modelSpec": [spec]}, "routerSpec": router}
