"""`bench serve`: run a vLLM server with a policy of Turnstile until Ctrl-C.

The base URL and an example request go to stdout, progress to stderr.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import CommandApp, Only, refuse_given
from harness.load.option import Option
from harness.load.settings import MACHINE, SERVED, Machine, Server
from servers.basics.errors import InvalidInput

if TYPE_CHECKING:
    from servers.variants import Variant
    from servers.vllm.launch.recipes import DeploymentRecipe
    from servers.vllm.launch.server import VllmServer

app = CommandApp()
POLL_INTERVAL_S = 1.0
CHOSEN_BY_RUN = frozenset((*SERVED, "model", "policy", "replicas", "router"))
"""Options whose values --from takes from the run."""
NOT_PRINTED = frozenset(
    (
        *("hardware", "kv_blocks", "mount", "out", "port", "ready_within_s", "ssd_gb"),
        *("vllm_python", "weights"),
    )
)

HELP = """Run vLLM with a policy of Turnstile, until Ctrl-C.

Prints the base URL and an example request. Arguments after -- are passed to vLLM; those that an
option of bench sets are refused. With --print it starts nothing, and prints how to run the server
elsewhere.

[bold]Examples[/bold]

  bench serve --model tiny --policy continuum

  bench serve --model llama-3.1-8b --policy infercept --port 8000 -- --gpu-memory-utilization 0.8

  bench serve --model ~/models/Qwen3-8B --policy continuum --costs costs.json

  bench serve --model llama-3.1-8b --replicas 4 --router thunderagent --port 8000

  bench serve --from runs/mine --print compose > compose.yaml
"""


class Format(StrEnum):
    """What `--print` writes: the methods of `DeploymentRecipe`."""

    COMMAND = "command"
    COMPOSE = "compose"
    K8S = "k8s"
    PRODUCTION_STACK = "production-stack"


@app.command(help=HELP)
def serve(
    *,
    context: typer.Context,
    print_: Annotated[
        Format | None,
        Option(
            "Print a vllm serve command, a Docker Compose file, Kubernetes manifests, or values "
            "for the Helm chart of vLLM's production stack."
        ),
    ] = None,
    ab: Annotated[
        bool,
        Option(
            "With --print compose or k8s: one more engine, which decides as stock vLLM does, for "
            "an A/B test with bench compare --prometheus."
        ),
    ] = False,
    from_: Annotated[
        Path | None,
        Option("Run folder whose winner is served, with its model and settings.", "RUN"),
    ] = None,
    model: Annotated[
        str,
        Option(
            "tiny (created locally), a name from bench list models (its shape, with dummy "
            "weights), a model folder, or a Hugging Face name.",
            "NAME|PATH",
            panel=MACHINE,
        ),
    ] = "tiny",
    policy: Annotated[
        str | None,
        Option(
            "A name from bench list policies, or my_module:MyPolicy. Default: no plug-in.", "NAME"
        ),
    ] = None,
    port: Annotated[
        int | None,
        Option(
            "Port on 127.0.0.1 of the server, or of the gateway of --router. Default: any free "
            "port.",
            "N",
            min=1,
            max=65535,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Option("Folder of the log and events. Default: a new folder in runs/serve/.", "FOLDER"),
    ] = None,
    hardware: Annotated[
        str | None,
        Option(
            "Profile with the prefill costs for the policy: a name from bench list hardware, a "
            "TOML file that describes a GPU, or a file from bench profile. Default: the GPU of "
            "this machine.",
            "NAME|FILE",
            panel=MACHINE,
        ),
    ] = None,
    machine: Annotated[Machine, Only(*SERVED)],
    kv_blocks: Annotated[
        int | None,
        Option(
            "Size of the KV cache in blocks (32 tokens on a CPU, else 16). Default: as fits.",
            "N",
            panel=MACHINE,
            min=2,
        ),
    ] = None,
    server: Annotated[
        Server,
        Only(
            "vllm_flags",
            "weights",
            "vllm_python",
            "costs",
            "image",
            "mount",
            "replicas",
            "router",
            "ready_within_s",
        ),
    ],
) -> None:
    from harness.cli.start_server import fresh_folder, running_servers
    from harness.load.server_config import server_config
    from servers.processes.port import Port as ReservedPort
    from servers.vllm.launch import command_line
    from servers.vllm.launch.find_vllm import find_vllm, vllm_in_image
    from servers.vllm.launch.offload_tier import OffloadTier

    if from_ is not None:
        from harness.cli.winner import winner_of

        refuse_given(context, CHOSEN_BY_RUN, "the run of --from decides it")
        won = winner_of(from_)
        model, policy, machine = won.model, won.policy, won.machine
        server = replace(server, replicas=won.replicas, router=won.router)
    if ab and print_ not in (Format.COMPOSE, Format.K8S):
        raise InvalidInput("--ab: add --print compose or --print k8s")
    if print_ is not None:
        refuse_given(context, NOT_PRINTED, "--print does not write it")
        recipe = _recipe(model, policy, machine, server, ab=ab)
        print(getattr(recipe, print_.replace("-", "_"))(), end="")
        return
    if server.router is not None:
        from harness.cli.start_server import router_of, serve_behind

        router = router_of(server.router, server.replicas)
        gateway_port = ReservedPort(port)
    variant = None if policy is None else _variant(policy)
    name, tier = (variant.policy_spec, variant.offload) if variant else (None, None)
    if tier is not None:
        python = server.vllm_python
        vllm = vllm_in_image(python) if server.image else find_vllm(python)
        dram_gb = command_line.dram_gb(machine.offload_gb, vllm, machine.gpus)
    machine = replace(machine, hardware=hardware, kv_blocks=kv_blocks)
    offload = OffloadTier(tier, dram_gb, machine.ssd_gb) if tier else None
    config = server_config(machine, server, model, name, offload)
    if variant is not None:
        config = variant.limited(config)
    folder = out or fresh_folder("serve")
    own_port = port if server.router is None else None
    with running_servers(config, folder, server, port=own_port) as (servers, start_s):
        _print_state(servers, start_s)
        if server.router is not None:
            serve_behind(router, servers, folder / "gateway", gateway_port.number)
        _print_servers(servers)
        _wait_for_failure(servers)


def _recipe(
    model: str, policy: str | None, machine: Machine, server: Server, *, ab: bool
) -> DeploymentRecipe:
    from harness.load.server_config import server_config
    from servers.routing import find_router
    from servers.vllm.launch.offload_tier import OffloadTier
    from servers.vllm.launch.recipes import DeploymentRecipe

    variant = None if policy is None else _variant(policy)
    offload = None
    if variant is not None and variant.offload is not None:
        if machine.offload_gb is None:
            raise InvalidInput(f"--policy {policy}: give the DRAM of its tier with --offload-gb")
        offload = OffloadTier(variant.offload, machine.offload_gb, machine.ssd_gb)
    if server.router is not None:
        find_router(server.router)
        if server.replicas < 2 and not ab:
            raise InvalidInput(f"--router {server.router}: add --replicas with at least 2")
    name = variant.policy_spec if variant else None
    config = server_config(machine, server, model, name, offload)
    limited = variant.limited(config) if variant else config
    return DeploymentRecipe(limited, server.replicas, server.router, ab)


def _variant(policy: str) -> Variant:
    from servers.variants import variant
    from servers.vllm.launch.command_line import check_policy

    check_policy(policy)
    return variant(policy)


def _print_state(servers: Sequence[VllmServer], start_s: float) -> None:
    info = servers[0].info
    tokens = info.kv_blocks * info.block_size
    scheduler = f"policy {info.policy}" if info.policy else "vLLM's own scheduler, no plug-in"
    for line in (
        f"vLLM {info.version} on {info.device}, ready after {start_s:.0f} s: {scheduler}",
        f"{info.model}: contexts up to {info.max_model_len} tokens, KV for {tokens} tokens "
        f"({info.kv_blocks} blocks of {info.block_size})",
        *([info.costs_from] if info.costs_from else []),
        *([f"events: {replica.events_path}" for replica in servers] if info.policy else []),
    ):
        print(line, file=sys.stderr)


def _print_servers(servers: Sequence[VllmServer]) -> None:
    server = servers[0]
    info = server.info
    request_tags = ', "vllm_xargs": {"program_id": "job-1", "turn": 0}' if info.policy else ""
    print(*(replica.base_url for replica in servers), sep="\n")
    print(
        f"curl {server.base_url}/v1/completions -H 'Content-Type: application/json' "
        f'-d \'{{"model": "{info.model}", "prompt": [72, 101, 108, 108, 111], "max_tokens": 16, '
        f'"ignore_eos": true{request_tags}}}\'',
        flush=True,
    )


def _wait_for_failure(servers: Sequence[VllmServer]) -> None:
    from servers.processes.supervised import first_failure

    while (failure := first_failure(servers)) is None:
        time.sleep(POLL_INTERVAL_S)
    raise failure
