"""Measure the profile of a vLLM, or take it from operator tables, and write and print it."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from importlib import metadata
from itertools import chain, count
from pathlib import Path
from typing import get_args

import typer

from harness.calibrate import step_times
from harness.calibrate.operator_tables import PACKAGES, profile_from_tables
from harness.calibrate.probe import DEV_MODE, Target, measure_reload
from harness.cli.print_profile import print_measured, print_profile
from harness.cli.start_server import StatusLine, fresh_folder, running_servers
from harness.console import print_message
from harness.engines.sim import DEFAULT_MODEL
from harness.engines.url import describe
from harness.load.server_config import server_config
from harness.load.settings import Machine, Server
from servers.basics.atomic import refuse_unwritable, write_file
from servers.basics.errors import InvalidInput, MeasurementFailed
from servers.basics.redact import server_url
from servers.basics.text import slug
from servers.profiles.files import profile_for
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.profiles.kv_groups import groups_of, pool
from servers.profiles.kv_memory import EVEN, FULL_ATTENTION, KvMemory
from servers.profiles.machines.gpu_file import hardware
from servers.profiles.machines.gpus import HARDWARE
from servers.profiles.measured import Measured, fitted
from servers.profiles.models.files import model_name
from servers.profiles.models.shape import Model
from servers.profiles.reference_steps import reference_steps
from servers.variants import Tier
from servers.vllm.launch.command_line import ServerConfig, dram_gb, listed_gpu, tensor_parallel
from servers.vllm.launch.find_vllm import find_vllm, gpu_names
from servers.vllm.launch.offload_tier import OffloadTier
from servers.vllm.launch.server import ServerInfo, VllmServer
from servers.vllm.models.model_folder import model_at_url, served_model


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


def write_from_tables(
    source: str, machine: Machine, out: Path | None, engine_version: str | None
) -> None:
    """Write and print a profile of operator tables."""
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

    kind = next((kind for kind in get_args(Tier) if kind == tier), None)
    if kind is None:
        raise InvalidInput(f"--tier {tier}: use lmcache or native")
    if url is not None:
        raise InvalidInput(f"--tier {tier}: not supported with --url; remove one of them")
    offload = OffloadTier(kind, dram_gb(offload_gb, find_vllm(python), config.gpus))
    return replace(config, offload=offload, env=DEV_MODE)


def _measure_new_server(config: ServerConfig, settings: Server, within_s: float) -> Measured:
    gpu = HARDWARE.get(listed_gpu(next(iter(gpu_names()), "")) or "")
    llm = served_model(config.model, config.weights, config.kv_cache_dtype, gpu)
    _check_blocks(llm)
    with running_servers(config, fresh_folder("profile"), settings) as ([server], _):
        return _measure(server.base_url, server.info, config, llm, within_s, server)


def _measure_url(url: str, machine: Machine, config: ServerConfig, within_s: float) -> Measured:
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
        times = step_times.measure(
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
