"""Writes how vLLM is deployed with a policy: as a command, for Docker Compose, for Kubernetes, or
for vLLM's production stack.

In: a `ServerConfig`, the number of engines, and the router in front of them. Out: text. Nothing is
started, pulled or installed. The policy comes from the package turnstile-vllm, and engines listen
on port 8000, with the API key in VLLM_API_KEY if that is set.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from msgspec import to_builtins

from servers.admission import Admission
from servers.basics.errors import InvalidInput, check_flags
from servers.basics.json_object import JsonObject
from servers.profiles import MODELS
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.vllm.launch.command_line import REFUSED_FLAGS, ServerConfig, tensor_parallel
from servers.vllm.launch.offload_tier import native_flags
from servers.vllm.launch.production_stack import chart_values

IMAGE = "vllm/vllm-openai:v0.32.0"
ROUTER_IMAGE = "python:3.12-slim"
VERSION = version("turnstile-bench")
PACKAGE = f"turnstile-vllm=={VERSION}"
SCHEDULER = "turnstile_vllm.Scheduler"
FOREIGN = "vllm-router:"
ROUTER_VERSION = "0.1.17"
"""The one that the tests run; its hash decides where a session goes."""
SPLITTER = f"{FOREIGN}consistent_hash"
PROGRAM_SCHEDULING = f"{FOREIGN}program_scheduling"
"""Needs the capacity and the costs of the engines, which bench sweep measures."""
CONFIG = " config.json"
"""Follows the Hugging Face name in the source of a listed model."""
PORT = 8000
TOKEN = "TURNSTILE_GATEWAY_TOKEN"  # noqa: S105
"""The variable with the key that clients of `bench gateway` send."""
PACKAGE_FOLDER = "/turnstile"
INSTALL = ["pip", "install", "--no-deps", "--target", PACKAGE_FOLDER, PACKAGE]
RECORDINGS = "/recordings"
SHARED_MEMORY_GIB = 16
"""Limit of the shared memory through which vLLM's processes exchange messages and tensors."""
READY = {"httpGet": {"path": "/health", "port": PORT}}
METRICS = "/prometheus"
"""A folder in memory, through which the scheduler's metrics reach vLLM's page."""
NAME, STOCK_NAME = "vllm", "vllm-stock"
STOCK = "fcfs"
HEALTHY = (
    "import sys, urllib.request as web; "
    '[web.urlopen(url + "/health", timeout=5) for url in sys.argv[1:]]'
)
"""The program of Python that fails unless the servers at its arguments are ready."""
WEIGHTS = "/root/.cache/huggingface"


@dataclass(frozen=True, slots=True)
class DeploymentRecipe:
    config: ServerConfig
    replicas: int = 1
    router: str | None = None
    """The router of a gateway of ours, or vllm-router:POLICY; None for one engine."""
    ab: bool = False
    """Whether one more engine decides as stock vLLM does, and counts the same metrics."""

    def command(self) -> str:
        """Raises InvalidInput for settings that a recipe cannot express, as the other methods."""
        return shlex.join(["vllm", "serve", *self._arguments()]) + "\n"

    @property
    def _model(self) -> str:
        model = self.config.model
        if model == "tiny":
            raise InvalidInput("--print: --model tiny is generated for tests; give another model")
        return MODELS[model].source.removesuffix(CONFIG) if model in MODELS else model

    def _check_containers(self) -> None:
        if self.config.policy is not None and ":" in self.config.policy:
            raise InvalidInput(
                f"--policy {self.config.policy}: containers do not have its module; use --print "
                "command where it is installed"
            )
        if os.path.exists(self._model):
            raise InvalidInput(
                f"--model {self._model}: containers do not have this path; give the model's "
                "Hugging Face name"
            )
        if self.ab:
            self._check_ab()
        if self.replicas > 1 and self.router is None:
            raise InvalidInput(
                f"--replicas {self.replicas}: a router must keep programs where their KV is; add "
                "--router sticky"
            )
        router = self.router or ""
        if ":" in router and (not router.startswith(FOREIGN) or router == PROGRAM_SCHEDULING):
            raise InvalidInput(
                f"--router {router}: no recipe has it; use a router of bench gateway, or "
                f"{FOREIGN}consistent_hash"
            )

    def _check_ab(self) -> None:
        if self.config.policy in (None, STOCK):
            raise InvalidInput(
                "--ab: compares a policy with stock vLLM; add one, such as --policy turnstile"
            )
        if self.replicas > 1:
            raise InvalidInput("--ab: one engine has the policy and one has not; remove --replicas")
        if self.router != SPLITTER:
            raise InvalidInput(
                f"--ab: add --router {SPLITTER}, which gives each engine a random half of the "
                "sessions, however loaded it is"
            )

    def _arguments(self, *, stock: bool = False) -> list[str]:
        """Return the arguments of `vllm serve`, or those of the stock engine of an A/B test. The
        user's flags come last."""
        config = self.config
        check_flags(config.flags, REFUSED_FLAGS)
        words = [
            *(self._model, "--tensor-parallel-size", str(tensor_parallel(config))),
            *("--max-num-seqs", str(config.max_num_seqs)),
            *("--max-num-batched-tokens", str(config.step_tokens)),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *config.vllm_flags(),
        ]
        if config.admission == Admission.FIRST_CHUNK:
            words.append("--no-scheduler-reserve-full-isl")
        if config.kv_cache_dtype != KvCacheDtype.AUTO:
            words += ["--kv-cache-dtype", config.kv_cache_dtype]
        if config.max_model_len is not None:
            words += ["--max-model-len", str(config.max_model_len)]
        if (tier := config.offload) is not None:
            if tier.kind != "native":
                raise InvalidInput(
                    f"--print: LMCache needs a server of its own, which no recipe has; use "
                    f"--policy {config.policy or 'fcfs'}+native"
                )
            words += native_flags(tier, on_cpu=False)
        if stock or config.policy not in (None, STOCK):
            options: JsonObject = {"policy": STOCK if stock else config.policy}
            if config.costs is not None and not stock:
                costs = to_builtins(config.costs)
                options["costs"] = {k: v for k, v in costs.items() if v is not None}
            words += ["--scheduler-cls", SCHEDULER]
            words += ["--additional-config", json.dumps({"turnstile": options})]
        return [*words, *config.flags]

    def _route(self, urls: Sequence[str]) -> list[str]:
        """Return the command of the router's container, which installs it first."""
        router, given = self.router or "", shlex.join(urls)
        if router.startswith(FOREIGN):
            policy = shlex.quote(router.removeprefix(FOREIGN))
            start = (
                f"pip install vllm-router=={ROUTER_VERSION} && "
                "exec python -m vllm_router.launch_router "
                f"--host 0.0.0.0 --port {PORT} --worker-urls {given} --policy {policy}"
            )
        else:
            start = (
                f"pip install turnstile-bench=={VERSION} && exec bench gateway {given} --listen "
                f"0.0.0.0 --port {PORT} --router {shlex.quote(router)} --out {RECORDINGS}"
            )
        return ["sh", "-c", start]

    @property
    def _needs_token(self) -> bool:
        return self.router is not None and not self.router.startswith(FOREIGN)

    def compose(self) -> str:
        self._check_containers()
        gpus = tensor_parallel(self.config)
        image = self.config.image or IMAGE
        installed = f"FROM {image}\nRUN pip install --no-deps {PACKAGE}\n"
        services: JsonObject = {}
        volumes: JsonObject = {"huggingface": {}}
        names = [f"{NAME}-{index}" for index in range(self.replicas)] + [STOCK_NAME] * self.ab
        for index, name in enumerate(names):
            arguments = self._arguments(stock=name == STOCK_NAME)
            devices = [str(gpu) for gpu in range(index * gpus, (index + 1) * gpus)]
            reserved = {"driver": "nvidia", "device_ids": devices, "capabilities": ["gpu"]}
            services[name] = {
                **(
                    {"build": {"dockerfile_inline": installed}}
                    if SCHEDULER in arguments
                    else {"image": image}
                ),
                "entrypoint": ["vllm", "serve"],
                "command": [*arguments, "--host", "0.0.0.0", "--port", str(PORT)],  # noqa: S104
                "environment": ["HF_TOKEN", "VLLM_API_KEY", f"PROMETHEUS_MULTIPROC_DIR={METRICS}"],
                "tmpfs": [METRICS],
                "volumes": [f"huggingface:{WEIGHTS}"],
                "shm_size": f"{SHARED_MEMORY_GIB}g",
                "deploy": {"resources": {"reservations": {"devices": [reserved]}}},
                "healthcheck": {
                    "test": ["CMD", "python3", "-c", HEALTHY, f"http://127.0.0.1:{PORT}"],
                    "interval": "10s",
                    "start_period": "20m",
                },
                "restart": "unless-stopped",
            }
        entry = services[f"{NAME}-0"]
        if self.router is not None:
            urls = [f"http://{name}:{PORT}" for name in services]
            healthy = {name: {"condition": "service_healthy"} for name in services}
            key = ["TURNSTILE_API_KEY=${VLLM_API_KEY:-}", f"{TOKEN}=${{{TOKEN}:?set a secret}}"]
            entry = services["router"] = {
                "image": ROUTER_IMAGE,
                "command": self._route(urls),
                "depends_on": healthy,
                "restart": "unless-stopped",
            }
            if self._needs_token:
                entry["environment"] = key
                entry["volumes"] = [f"recordings:{RECORDINGS}"]
                volumes["recordings"] = {}
        entry["ports"] = [f"127.0.0.1:{PORT}:{PORT}"]
        if self.ab:
            for port, name in enumerate(names, PORT + 1):  # for their pages of metrics
                services[name]["ports"] = [f"127.0.0.1:{port}:{PORT}"]
        for service in services.values():  # Compose replaces $NAME in every text
            service["command"] = [word.replace("$", "$$") for word in service["command"]]
        return yaml_text([{"services": services, "volumes": volumes}])

    def k8s(self) -> str:
        self._check_containers()
        objects = self._engines(NAME, self.replicas, self._arguments())
        urls = [f"http://{NAME}-{index}.{NAME}:{PORT}" for index in range(self.replicas)]
        if self.ab:
            objects += self._engines(STOCK_NAME, 1, self._arguments(stock=True))
            urls.append(f"http://{STOCK_NAME}-0.{STOCK_NAME}:{PORT}")
        if self.router is not None:
            routing: JsonObject = {
                "name": "router",
                "image": ROUTER_IMAGE,
                "command": _kubernetes(self._route(urls)),
                "ports": [{"containerPort": PORT}],
                "readinessProbe": READY,
            }
            wait = f"until python3 -c {shlex.quote(HEALTHY)} {shlex.join(urls)}; do sleep 5; done"
            waiting = {"name": "engines", "image": ROUTER_IMAGE, "command": ["sh", "-c", wait]}
            pod = {"initContainers": [waiting], "containers": [routing]}
            if self._needs_token:
                key = _api_key("TURNSTILE_API_KEY")
                routing["env"] = [key, _secret(TOKEN, "turnstile", "gateway-token", required=True)]
                routing["volumeMounts"] = [{"name": "recordings", "mountPath": RECORDINGS}]
                pod["volumes"] = [{"name": "recordings", "emptyDir": {}}]
            pods = _pods("router", pod, 1)
            objects += [_service("router"), _object("Deployment", "router", pods)]
        return yaml_text(objects)

    def production_stack(self) -> str:
        self._check_containers()
        if self.router not in (None, "sticky"):
            raise InvalidInput(
                f"--router {self.router}: the production stack has a router of its own; use "
                "--router sticky, which becomes its session routing"
            )
        arguments = self._arguments()
        install = (PACKAGE_FOLDER, INSTALL) if SCHEDULER in arguments else None
        image = self.config.image or IMAGE
        values = chart_values(
            "turnstile", image, _kubernetes(arguments), self.replicas, _keys(), install
        )
        # Its router asks the engines for their models.
        values["routerSpec"]["env"] = [_api_key("VLLM_API_KEY")]
        return yaml_text([values])

    def _engines(self, name: str, replicas: int, arguments: list[str]) -> list[JsonObject]:
        """Return a set of equal engines for Kubernetes, with a name for each."""
        image = self.config.image or IMAGE
        container: JsonObject = {
            "name": NAME,
            "image": image,
            "command": ["vllm", "serve"],
            "args": _kubernetes([*arguments, "--host", "0.0.0.0", "--port", str(PORT)]),  # noqa: S104
            "env": [
                *_keys(),
                {"name": "PROMETHEUS_MULTIPROC_DIR", "value": METRICS},
            ],
            "ports": [{"containerPort": PORT}],
            "resources": {"limits": {"nvidia.com/gpu": tensor_parallel(self.config)}},
            "readinessProbe": READY,
            "volumeMounts": [
                {"name": "huggingface", "mountPath": WEIGHTS},
                {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
                {"name": "metrics", "mountPath": METRICS},
            ],
        }
        pod: JsonObject = {
            "enableServiceLinks": False,  # they set VLLM_PORT, which vLLM reads
            "containers": [container],
            "volumes": [
                {"name": "huggingface", "emptyDir": {}},
                {
                    "name": "shm",
                    "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"},
                },
                {"name": "metrics", "emptyDir": {"medium": "Memory"}},
            ],
        }
        if SCHEDULER in arguments:
            mount = {"name": "turnstile", "mountPath": PACKAGE_FOLDER}
            container["volumeMounts"].append(mount)
            container["env"].append({"name": "PYTHONPATH", "value": PACKAGE_FOLDER})
            pod["volumes"].append({"name": "turnstile", "emptyDir": {}})
            pod["initContainers"] = [
                {"name": "plugin", "image": image, "command": INSTALL, "volumeMounts": [mount]}
            ]
        engines = _object("StatefulSet", name, _pods(name, pod, replicas))
        engines["spec"] |= {"serviceName": name, "podManagementPolicy": "Parallel"}
        return [_service(name, headless=True), engines]


def _kubernetes(words: Iterable[str]) -> list[str]:
    """Return the words so that Kubernetes does not replace $(NAME) in them."""
    return [word.replace("$(", "$$(") for word in words]


def _keys() -> list[JsonObject]:
    return [_secret("HF_TOKEN", "huggingface", "token"), _api_key("VLLM_API_KEY")]


def _api_key(name: str) -> JsonObject:
    return _secret(name, "vllm", "api-key")


def _secret(name: str, secret: str, key: str, *, required: bool = False) -> JsonObject:
    reference = {"name": secret, "key": key, "optional": not required}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def _object(kind: str, name: str, spec: JsonObject) -> JsonObject:
    version = "v1" if kind == "Service" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _pods(name: str, pod: Mapping[str, Any], replicas: int) -> JsonObject:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}


def _service(name: str, *, headless: bool = False) -> JsonObject:
    """Return a service; a headless one gives each pod of a set a name of its own."""
    spec: JsonObject = {"selector": {"app": name}, "ports": [{"port": PORT}]}
    if headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return _object("Service", name, spec)


def yaml_text(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return documents as YAML, with their texts in JSON."""
    return "---\n".join("".join(_lines(document, "")) for document in documents)


def _lines(value: Any, indent: str) -> Iterator[str]:
    pairs = value.items() if isinstance(value, Mapping) else ((None, each) for each in value)
    for key, inner in pairs:
        head = f"{indent}- " if key is None else f"{indent}{key}:"
        if not isinstance(inner, Mapping | list) or not inner:
            yield f"{head.rstrip()} {json.dumps(inner, ensure_ascii=False)}\n"
        elif key is None:
            first, *others = _lines(inner, f"{indent}  ")
            yield head + first.lstrip()
            yield from others
        else:
            yield f"{head}\n"
            yield from _lines(inner, f"{indent}  ")
