"""`bench profile`: measure a live engine, and write or print a profile.

The summary goes to stdout, progress to stderr.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from importlib import metadata
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import AllBut, CommandApp, Only, refuse_given
from harness.console import print_message
from harness.load.option import Option
from harness.load.settings import Machine, Server
from servers.basics.atomic import refuse_unwritable, write_file
from servers.basics.errors import InvalidInput, MeasurementFailed
from servers.basics.redact import server_url
from servers.basics.text import slug

if TYPE_CHECKING:
    from servers.profiles.measured import Measured
    from servers.profiles.models.shape import Model
    from servers.vllm.launch.command_line import ServerConfig
    from servers.vllm.launch.server import ServerInfo, VllmServer

app = CommandApp()
OF_A_PRINTED_PROFILE = ("step_times", "scheduling", "layout", "json")
NOT_OF_A_PRINTED_PROFILE = AllBut(
    *OF_A_PRINTED_PROFILE,
    *("show", "hardware", "model", "kv_cache_dtype", "gpus", "kv_blocks", "max_model_len"),
    "step_tokens",
)
NOT_OF_TABLES = AllBut(
    *("from_", "hardware", "backend_version", "model", "out", "vllm_python"),
    *("gpus", "kv_blocks", "max_model_len", "step_tokens"),
)

HELP = """Measure how fast vLLM is on this machine: prefills, decode steps, KV memory.

Starts a server without a policy and stops it; its log stays in runs/profile/. Other commands read
the profile as --hardware FILE. The machine should be idle. Arguments after -- are passed to vLLM;
those that an option of bench sets are refused.

With --show nothing is measured: step times, KV memory, provenance and errors of a profile are
printed. Where operator tables cover the GPU and the model, their times are printed too, without CPU
time between steps. Tables compute a prompt in one step, so the profile's time in one step is
printed beside them.

With --from aiconfigurator or --from aisimulate nothing is measured here: step times of the GPU in
--hardware come from the operator tables of the package aiconfigurator-core, or of its successor
aisimulate, which need no GPU.

[bold]Examples[/bold]

  bench profile

  bench profile --model llama-3.1-8b --out h200.json

  bench profile --tier lmcache

  bench profile --url http://127.0.0.1:8000 --within-s 300

  bench profile --show --hardware h100 --model llama-3.1-8b

  bench profile --show --hardware b200 --model llama-3.1-70b --gpus 8 --json

  bench profile --from aiconfigurator --hardware h100 --model llama-3.1-8b
"""


@app.command(help=HELP)
def profile(
    *,
    context: typer.Context,
    show: Annotated[bool, Option("Print a profile, and measure nothing.")] = (False),
    json: Annotated[bool, Option("With --show: print JSON.")] = False,
    model: Annotated[
        str | None,
        Option(
            "As for bench serve. Required with --url unless the server's model has one of "
            "these names. Default: tiny.",
            "NAME|PATH",
        ),
    ] = None,
    url: Annotated[
        str | None, Option("Measure this idle vLLM server instead of starting one.", "URL")
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            "A new file. Default: MODEL-profile.json, or HARDWARE-MODEL.json with --from, "
            "numbered if the file exists.",
            "FILE",
            dir_okay=False,
        ),
    ] = None,
    within_s: Annotated[
        float, Option("Time limit for measuring.", "SECONDS", min=10, max=540)
    ] = 120.0,
    tier: Annotated[
        str | None, Option("Also measure reloads: lmcache or native (vLLM's own).", "KIND")
    ] = None,
    from_: Annotated[
        str | None,
        Option(
            "Take step times from a package's operator tables instead of measuring. aiconfigurator "
            "needs the extra silicon, and aisimulate that package.",
            "aiconfigurator|aisimulate",
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        Option(
            "A GPU of bench list hardware, for --show and --from, and for --url if KV bytes "
            "depend on it. With --show also a TOML file that describes a GPU, or a file of bench "
            "profile, which contains its model.",
            "NAME|FILE",
        ),
    ] = None,
    backend_version: Annotated[
        str | None,
        Option(
            "With --from: the vLLM that the operators were measured with. Default: the one "
            "that the package recommends for the GPU.",
            "VERSION",
        ),
    ] = None,
    machine: Annotated[
        Machine,
        Only(
            "offload_gb",
            "gpus",
            "kv_cache_dtype",
            "kv_blocks",
            "max_model_len",
            "max_num_seqs",
            "step_tokens",
            "step_times",
            "scheduling",
            "layout",
        ),
    ],
    server: Annotated[Server, Only("vllm_flags", "weights", "vllm_python", "ready_within_s")],
) -> None:
    machine = replace(machine, model=model, hardware=hardware)
    if show:
        from harness.cli.print_profile import show_profile

        refuse_given(context, NOT_OF_A_PRINTED_PROFILE, "not supported with --show")
        show_profile(machine, json)
        return
    refuse_given(context, OF_A_PRINTED_PROFILE, "only with --show")
    if from_ is None:
        if url is None:
            refuse_given(context, ("hardware",), "only with --show, --url or --from")
        refuse_given(context, ("backend_version",), "only with --from")
        measure_profile(machine, server, out, within_s, url, tier)
        return
    refuse_given(context, NOT_OF_TABLES, "not supported with --from")
    _from_tables(from_, machine, out, backend_version)


def _check_out(path: Path) -> None:
    """Raise InvalidInput unless the file has a name that --hardware takes, does not exist yet, and
    can be written."""
    if path.suffix != ".json":
        raise InvalidInput(f"--out {path}: give a name that ends in .json, as --hardware needs it")
    if path.exists():
        raise InvalidInput(f"--out {path}: exists already; give another name, or remove the file")
    refuse_unwritable(path)


def _unused(path: Path) -> Path:
    names = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return next(name for name in chain([path], names) if not name.exists())


def _from_tables(
    source: str, machine: Machine, out: Path | None, engine_version: str | None
) -> None:
    from harness.calibrate.operator_tables import PACKAGES, profile_from_tables
    from harness.cli.print_profile import print_profile
    from harness.engines.sim import DEFAULT_MODEL
    from servers.profiles.files import profile_for
    from servers.profiles.models.files import model_name
    from servers.profiles.reference_steps import reference_steps

    if source not in PACKAGES:
        raise InvalidInput(f"--from {source}: use {' or '.join(PACKAGES)}")
    if machine.hardware is None:
        raise InvalidInput(f"--from {source}: needs --hardware, a name of bench list hardware")
    name = machine.model or DEFAULT_MODEL
    path = out or _unused(Path(f"{machine.hardware}-{slug(model_name(name))}.json"))
    _check_out(path)
    measured = profile_from_tables(
        machine.hardware,
        name,
        gpus=machine.gpus,
        max_model_len=machine.max_model_len,
        kv_blocks=machine.kv_blocks,
        step_tokens=machine.step_tokens,
        engine_version=engine_version,
        package=PACKAGES[source],
    )
    write_file(path, f"{measured.model_dump_json(indent=1)}\n".encode())
    profile = profile_for(str(path), None)
    points = reference_steps(profile, machine.step_tokens)
    kv_tokens = profile.kv_tokens(machine.step_tokens, profile.max_model_len)
    print_profile(profile, measured.gpus, points, kv_tokens, measured.notes()[0], measured.errors)
    for note in measured.notes()[1:]:
        print_message(note)
    print(f"profile: {path}")


def measure_profile(
    machine: Machine,
    server: Server,
    out: Path | None,
    within_s: float,
    url: str | None = None,
    tier: str | None = None,
) -> None:
    """Write the profile and print a summary. Exit with code 1 if the measurement fails."""
    from harness.cli.print_profile import print_measured
    from harness.load.server_config import server_config

    _check_out(out or _unused(Path("profile.json")))
    config = server_config(machine, server, machine.model or "tiny")
    if tier is not None:
        config = _with_tier(config, tier, machine.offload_gb, url, server.vllm_python)
    try:
        if url is not None:
            measured = _measure_url(url, machine, config, within_s)
        else:
            measured = _measure_new_server(config, server, within_s)
    except MeasurementFailed as error:
        print_message(str(error))
        raise typer.Exit(1) from None
    path = out or _unused(Path(f"{slug(measured.model)}-profile.json"))
    write_file(path, f"{measured.model_dump_json(indent=1)}\n".encode())
    print_measured(measured)
    print(f"profile: {path}")


def _with_tier(
    config: ServerConfig, tier: str, offload_gb: float | None, url: str | None, python: str | None
) -> ServerConfig:
    from typing import get_args

    from harness.calibrate.probe import DEV_MODE
    from servers.variants import Tier
    from servers.vllm.launch.command_line import dram_gb
    from servers.vllm.launch.find_vllm import find_vllm
    from servers.vllm.launch.offload_tier import OffloadTier

    kind = next((kind for kind in get_args(Tier) if kind == tier), None)
    if kind is None:
        raise InvalidInput(f"--tier {tier}: use lmcache or native")
    if url is not None:
        raise InvalidInput(f"--tier {tier}: not supported with --url; remove one of them")
    offload = OffloadTier(kind, dram_gb(offload_gb, find_vllm(python), config.gpus))
    return replace(config, offload=offload, env=DEV_MODE)


def _measure_new_server(config: ServerConfig, settings: Server, within_s: float) -> Measured:
    from harness.cli.start_server import fresh_folder, running_servers
    from servers.profiles.machines.gpus import HARDWARE
    from servers.vllm.launch.command_line import listed_gpu
    from servers.vllm.launch.find_vllm import gpu_names
    from servers.vllm.models.model_folder import served_model

    gpu = HARDWARE.get(listed_gpu(next(iter(gpu_names()), "")) or "")
    llm = served_model(config.model, config.weights, config.kv_cache_dtype, gpu)
    _check_blocks(llm)
    with running_servers(config, fresh_folder("profile"), settings) as ([server], _):
        return _measure(server.base_url, server.info, config, llm, within_s, server)


def _measure_url(url: str, machine: Machine, config: ServerConfig, within_s: float) -> Measured:
    from harness.engines.url import describe
    from servers.profiles.kv_cache_dtype import KvCacheDtype
    from servers.profiles.machines.gpu_file import hardware
    from servers.vllm.models.model_folder import model_at_url

    if config.kv_cache_dtype != KvCacheDtype.AUTO:
        raise InvalidInput(
            f"--kv-cache-dtype {config.kv_cache_dtype}: not supported with --url, whose server "
            "has its own format; remove it"
        )
    gpu = None if machine.hardware is None else hardware(machine.hardware)
    info = describe(base_url := server_url(url, "--url"))
    reported = info.cache_config.get("cache_dtype", "auto")
    llm, dtype = model_at_url(base_url, machine.model or info.model, config.weights, reported, gpu)
    _check_blocks(llm)
    return _measure(base_url, info, replace(config, kv_cache_dtype=dtype), llm, within_s)


def _check_blocks(llm: Model) -> None:
    """Raise InvalidInput for a model whose KV memory the number of blocks does not tell."""
    from servers.profiles.kv_groups import pool
    from servers.profiles.kv_memory import EVEN

    if pool(llm, 1, 16).lengths != EVEN:
        raise InvalidInput(
            f"--model {llm.name}: its blocks of KV have two lengths, which a measured profile does "
            "not state; use --from aiconfigurator, or an analytic profile"
        )


def _measure(
    base_url: str,
    info: ServerInfo,
    config: ServerConfig,
    llm: Model,
    within_s: float,
    server: VllmServer | None = None,
) -> Measured:
    from harness.calibrate.probe import Target, measure_reload
    from harness.calibrate.step_times import measure
    from harness.cli.start_server import StatusLine
    from servers.profiles.kv_groups import groups_of
    from servers.profiles.kv_memory import FULL_ATTENTION, KvMemory
    from servers.profiles.measured import Measured, fitted
    from servers.vllm.launch.command_line import tensor_parallel

    groups = FULL_ATTENTION if llm.states is None else groups_of(llm)[0]
    memory = KvMemory(info.kv_blocks - 1, info.block_size, kv_groups=groups)  # vLLM reserves one
    gpus = 1 if server is None else tensor_parallel(config)
    target = Target(
        base_url=base_url,
        model=info.model,
        vocabulary=range(*info.vocabulary),
        max_model_len=info.max_model_len,
        kv_tokens=memory.kv_tokens(config.step_tokens, info.max_model_len),
        step_tokens=config.step_tokens,
        max_num_seqs=config.max_num_seqs,
    )
    with StatusLine() as status:
        times = measure(
            target,
            within_s,
            lambda share, stage: status.show(f"{share:.0%} of {within_s:g} s: {stage}"),
        )
    reload = None
    if server is not None and config.offload is not None:
        print("measuring reloads from the tier", file=sys.stderr, flush=True)
        reload = measure_reload(server, target)
    prefill, decode = tuple(times.prefill), tuple(times.decode)
    return Measured.model_validate(
        {
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "made_by": f"turnstile-bench {metadata.version('turnstile-bench')}",
            "machine": info.device,
            "engine": f"vLLM {info.version}",
            "flags": info.flags,
            "model": info.model,
            "gpus": config.gpus,
            "kv_blocks": info.kv_blocks,
            "block_tokens": info.block_size,
            "max_model_len": info.max_model_len,
            "kv_bytes_per_token": llm.kv_bytes_per_token_on(gpus),
            "kv_cache_dtype": config.kv_cache_dtype,
            "kv_groups": groups,
            "step_tokens": config.step_tokens,
            "schedules_ahead": info.schedules_ahead,
            "prefill": prefill,
            "decode": decode,
            "reload": reload,
            "left_out": tuple(times.left_out),
            **fitted(prefill, decode, config.step_tokens),
        }
    )
