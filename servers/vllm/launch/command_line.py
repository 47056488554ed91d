"""The command line and the environment of a vLLM server.

In: a `ServerConfig`, the vLLM installation, the model to load. Out: flags, environment variables,
and the policy's costs. The user's flags come last, so that they take precedence; flags that would
contradict an option of ours are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from servers.admission import MAX_NUM_SEQS, STEP_TOKENS, Admission, Headroom
from servers.basics.errors import InvalidInput, check_flags
from servers.basics.json_object import JsonObject
from servers.profiles import HARDWARE, MODELS, costs, model
from servers.profiles import hardware as find_gpu
from servers.profiles.cpu_time import StepTimes
from servers.profiles.files import is_file, measured_for
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.profiles.layout import Layout
from servers.sim import Limits
from servers.variants import variant, variants
from servers.vllm.launch.cost_curve import TINY_ON_CPU, costs_on, fit_decode_step
from servers.vllm.launch.find_vllm import VllmInstallation, gpu_names
from servers.vllm.launch.offload_tier import OffloadTier
from servers.vllm.models.model_folder import ResolvedModel
from servers.vllm.plugin.compatibility import TESTED
from servers.vllm.plugin.cost_curve import CostCurve

SCHEDULER = "servers.vllm.plugin.scheduler.TurnstileScheduler"
MIDDLEWARE = "servers.vllm.plugin.api_server.ProgramHeaders"
ANSWERS = "servers.vllm.plugin.recorded_answers:RecordedAnswers"
OPTIONS = "options.json"
"""The file with the plug-in's options, in the folder of the server."""
CPU_BLOCK_TOKENS, GPU_BLOCK_TOKENS = 32, 16
CPU_KV_GIB = "1"
CPU_DRAM_GB, GPU_DRAM_GB = 1.0, 100.0
"""Default DRAM of an offload tier if the machine is not in `servers.profiles`."""
_LOOPBACK_ONLY = (
    "the server always listens on 127.0.0.1; to reach it from elsewhere use bench gateway --listen"
)
_VISIBLE = "other users can see command lines; set {} in the environment instead"
_USE = "use {} instead, so that costs and limits agree with the engine"
_NEEDED = "the plug-in needs {}; remove it"
_CACHED = "prefix hits of states and windows are compared with vLLM's default; remove it"
REFUSED_FLAGS = {
    "--host": _LOOPBACK_ONLY,
    "--uds": _LOOPBACK_ONLY,
    "--port": "a free port is chosen; with bench serve use --port before the --",
    "--api-key": _VISIBLE.format("VLLM_API_KEY"),
    "--hf-token": _VISIBLE.format("HF_TOKEN"),
    "--config": "its flags would not be checked; give them one by one",
    "--model": _USE.format("--model before the --"),
    "--served-model-name": "clients are given Turnstile's name of the model; remove it",
    "--load-format": _USE.format("--weights"),
    "--scheduler-cls": _USE.format("--policy or --policies"),
    "--scheduling-policy": _USE.format("--policy or --policies"),
    "--scheduler-reserve-full-isl": _USE.format(f"--admission {Admission.WHOLE_PROMPT}"),
    "--no-scheduler-reserve-full-isl": _USE.format(f"--admission {Admission.FIRST_CHUNK}"),
    "--async-scheduling": _NEEDED.format("vLLM's default"),
    "--no-async-scheduling": _NEEDED.format("vLLM's default"),
    "--no-enable-prefix-caching": _NEEDED.format("prefix caching"),
    "--max-num-seqs": _USE.format("--max-num-seqs before the --"),
    "--max-num-active-seqs": _USE.format("--max-num-seqs before the --"),
    "--max-num-batched-tokens": _USE.format("--step-tokens"),
    "--max-num-scheduled-tokens": _USE.format("--step-tokens"),
    "--long-prefill-token-threshold": _USE.format("--long-prefill"),
    "--long-prefill-token-threshold-adaptive": _USE.format("--long-prefill-adaptive"),
    "--watermark": _USE.format("--watermark before the --"),
    "--prefill-schedule-interval": (
        "it delays prefills only on data-parallel ranks of one server, and --replicas starts "
        "separate servers; remove it"
    ),
    "--max-model-len": _USE.format("--max-model-len before the --"),
    "--num-gpu-blocks-override": _USE.format("--kv-blocks"),
    "--kv-cache-dtype": _USE.format("--kv-cache-dtype before the --"),
    "--block-size": (
        f"Turnstile counts in blocks of {CPU_BLOCK_TOKENS} tokens on a CPU and of "
        f"{GPU_BLOCK_TOKENS} on a GPU; remove it"
    ),
    "--prefix-match-unit": _CACHED,
    "--prefix-cache-retention-interval": _CACHED,
    "--mamba-cache-mode": _CACHED,
    "--mamba-block-size": _CACHED,
    "--enable-mamba-shared-prefix-checkpoint": _CACHED,
    "--tensor-parallel-size": _USE.format("--gpus"),
    "-tp": _USE.format("--gpus"),
    "--data-parallel-size": _USE.format("--replicas"),
    "-dp": _USE.format("--replicas"),
    "--enable-trace-replay": _USE.format("--answers recorded"),
}
"""Flags of vLLM that are refused, and what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Headroom):
    """The settings of one vLLM server."""

    model: str = "tiny"
    policy: str | None = None
    """A policy's name or dotted path, with its arguments; None for vLLM without the plug-in."""
    weights: str = "auto"
    hardware: str | None = None
    """The machine of a profile (a name or a GPU file) or the file of a measured one, from
    which the policy's costs are computed; None for the GPU of this machine."""
    step_times: StepTimes = StepTimes.TABLES
    costs: CostCurve | None = None
    """The policy's costs; None to compute them from a profile."""
    kv_blocks: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = MAX_NUM_SEQS
    step_tokens: int = STEP_TOKENS
    admission: Admission = Admission.WHOLE_PROMPT
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO
    gpus: int | None = None
    layout: Layout = Layout.TP
    offload: OffloadTier | None = None
    image: str | None = None
    """A container image with vLLM; None to use an environment of this machine."""
    mounts: tuple[Path, ...] = ()
    """Folders mounted read-only in the container, besides the model's and the cell's."""
    recorded_answers: bool = False
    """Whether requests may say which tokens their answers have."""
    flags: tuple[str, ...] = ()
    """Additional flags of vLLM."""
    env: Mapping[str, str] = field(default_factory=dict)


def check_policy(name: str) -> None:
    """Raise InvalidInput unless `name` is one policy that a live server can run."""
    policies = variants(name)
    if len(policies) != 1:
        raise InvalidInput(f"--policy {name}: a server runs one policy; give one name")
    if policies[0].impossible:
        raise InvalidInput(
            f"--policy {name}: {policies[0].impossible}, so it runs in virtual time only"
        )


def check_limits(limits: Limits | ServerConfig, vllm: VllmInstallation) -> None:
    """Raise InvalidInput for settings of the scheduler that this vLLM lacks."""
    admission = limits.admission
    for name in vllm.lacks:
        if getattr(limits, name):
            option = "--" + name.replace("_", "-")
            raise InvalidInput(
                f"{option}: vLLM {vllm.version} does not have it; remove it, or use vLLM 0.32"
            )
    if admission == Admission.FIRST_CHUNK and not vllm.has_first_chunk_admission:
        raise InvalidInput(
            f"--admission {admission}: vLLM {vllm.version} has no --no-scheduler-reserve-full-isl; "
            f"use --admission {Admission.WHOLE_PROMPT}, or a version that has it ({TESTED})"
        )


def check_layout(config: ServerConfig, vllm: VllmInstallation) -> None:
    """Raise InvalidInput unless this vLLM can share the model so."""
    if config.layout == Layout.DP_ATTN:
        raise InvalidInput(
            f"--layout {config.layout}: modelled in virtual time only; use --engine sim, or give "
            "a running server's URL as --engine"
        )
    gpus = tensor_parallel(config)
    if config.layout == Layout.PP and (vllm.cpu or gpus < 2):
        found = "a CPU" if vllm.cpu else "1 GPU"
        raise InvalidInput(
            f"--layout {config.layout}: {found} is no pipeline; use --gpus 2 or more"
        )


def check_answers(config: ServerConfig, vllm: VllmInstallation) -> None:
    """Raise InvalidInput for recorded answers if this vLLM cannot take them."""
    if config.recorded_answers and not (vllm.cpu or vllm.has_trace_replay):
        raise InvalidInput(
            f"--answers recorded: vLLM {vllm.version} has no --enable-trace-replay; use "
            "--answers generated, or vLLM 0.32"
        )


def _answers(config: ServerConfig, vllm: VllmInstallation) -> tuple[str, ...]:
    """Return the flags for recorded answers. Model runner V1, which vLLM uses on CPUs, takes a
    logits processor, and V2 has the replay of a trace."""
    check_answers(config, vllm)
    if not config.recorded_answers:
        return ()
    return ("--logits-processors", ANSWERS) if vllm.cpu else ("--enable-trace-replay",)


def flags(
    config: ServerConfig,
    vllm: VllmInstallation,
    model: ResolvedModel,
    port: int,
    tier: tuple[str, ...] = (),
) -> tuple[str, ...]:
    check_flags(config.flags, REFUSED_FLAGS)
    chosen = [
        *("--model", model.path, "--served-model-name", model.name, *model.flags),
        *("--host", "127.0.0.1", "--port", str(port), "--uvicorn-log-level", "warning"),
        # Older versions accept cross-origin requests from any web page.
        *("--allowed-origins", "[]"),
        *("--max-num-seqs", str(config.max_num_seqs)),
        *("--max-num-batched-tokens", str(config.step_tokens)),
        *("--generation-config", "vllm", "--enable-prefix-caching"),
        "--enable-prompt-tokens-details",
    ]
    if vllm.has_request_metrics:
        chosen.append("--enable-per-request-metrics")
    check_limits(config, vllm)
    chosen += config.vllm_flags()
    if config.admission == Admission.FIRST_CHUNK:
        chosen.append("--no-scheduler-reserve-full-isl")
    if vllm.cpu:
        chosen += ["--enforce-eager", "--block-size", str(CPU_BLOCK_TOKENS)]
    else:
        size = "pipeline" if config.layout == Layout.PP else "tensor"
        chosen += [f"--{size}-parallel-size", str(tensor_parallel(config))]
    if config.kv_cache_dtype != KvCacheDtype.AUTO:
        chosen += ["--kv-cache-dtype", config.kv_cache_dtype]
    if config.kv_blocks is not None:
        chosen += ["--num-gpu-blocks-override", str(config.kv_blocks)]
    if (max_model_len := longest_context(config, vllm, model)) is not None:
        chosen += ["--max-model-len", str(max_model_len)]
    if config.policy is not None:
        chosen += ["--scheduler-cls", SCHEDULER, "--middleware", MIDDLEWARE]
    return (*chosen, *_answers(config, vllm), *tier, *config.flags)


def tensor_parallel(config: ServerConfig) -> int:
    """Return the number of GPUs that one copy of the model is split over."""
    listed = MODELS[config.model].gpus if config.model in MODELS else None
    return config.gpus or listed or 1


def longest_context(
    config: ServerConfig, vllm: VllmInstallation, model: ResolvedModel
) -> int | None:
    """Return the configured context length, or the longest one for the model and the KV pool, in
    tokens; None to use vLLM's default, also if only vLLM knows how many tokens a block has. One
    block of the pool is vLLM's null block."""
    if config.max_model_len is not None or config.kv_blocks is None or model.max_context is None:
        return config.max_model_len
    block_tokens = CPU_BLOCK_TOKENS if vllm.cpu else GPU_BLOCK_TOKENS
    pool = (config.kv_blocks - 1) * block_tokens
    if pool < block_tokens:
        raise InvalidInput(f"--kv-blocks {config.kv_blocks}: vLLM reserves one; use at least 2")
    return None if model.states else min(model.max_context, pool)


def environment(
    config: ServerConfig,
    vllm: VllmInstallation,
    model: ResolvedModel,
    folder: Path,
    plugin_path: Path,
) -> dict[str, str]:
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
    if os.path.isabs(model.path):
        env["HF_HUB_OFFLINE"] = "1"
    if vllm.cpu:
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_KV_GIB)
    for name in [name for name in env if name.startswith("TURNSTILE_")]:
        del env[name]
    path = [str(plugin_path)]
    if config.policy is not None:
        if variant(config.policy).module_root is not None:
            path.append(os.getcwd())
        env["TURNSTILE_OPTIONS"] = str(folder / OPTIONS)
    if config.policy is not None or config.offload is not None:
        env["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [env.get("PYTHONPATH")])])
    return {**env, **config.env}


def plugin_options(config: ServerConfig, vllm: VllmInstallation, folder: Path) -> JsonObject:
    """Return the options of the plug-in for a server with a policy."""
    return {
        "policy": config.policy,
        "costs": to_builtins(policy_costs(config, vllm)[0]),
        "events": str(folder / "engine.jsonl"),
        # As in virtual time, programs end only with their last turn.
        "idle_s": None,
    }


def policy_costs(config: ServerConfig, vllm: VllmInstallation) -> tuple[CostCurve, str]:
    """Return the cost curve and its source. Without an offload tier it has no reload cost."""
    curve, source = _costs(config, vllm)
    if config.offload is None:
        return replace(curve, reload_s_per_token=None), source
    if curve.reload_s_per_token is None:
        raise InvalidInput(
            f"--policy {config.policy} with an offload tier: the costs ({source}) have no reload "
            "cost; add reload_s_per_token"
        )
    return curve, source


def _costs(config: ServerConfig, vllm: VllmInstallation) -> tuple[CostCurve, str]:
    if config.costs is not None:
        return config.costs, "costs as configured"
    if config.hardware is not None and is_file(config.hardware):
        return _measured_costs(config, config.hardware)
    problem = _profile_problem(config.model)
    if config.hardware is not None and problem:
        raise InvalidInput(
            f"--hardware {config.hardware}: no profile has {config.model} on that machine; "
            f"use --costs FILE instead ({problem})"
        )
    if not problem and (hardware := config.hardware or hardware_here(vllm)):
        gpus = tensor_parallel(config)
        curve, provenance = costs_on(
            config.model,
            hardware,
            gpus=gpus,
            step_tokens=config.step_tokens,
            step_times=config.step_times,
            kv_cache_dtype=config.kv_cache_dtype,
            layout=config.layout,
        )
        gpu = find_gpu(hardware).name
        return curve, f"costs from the {provenance} profile of {config.model} on {gpu}"
    if config.model == "tiny":
        curve = replace(TINY_ON_CPU, step_tokens=config.step_tokens)
        differs = "" if vllm.cpu else ", which this machine is not"
        return curve, f"costs are constants for tiny on two CPU cores{differs}"
    raise InvalidInput(
        f"--policy {config.policy}: the cost of a prefill of {config.model} is unknown; "
        "use --costs FILE, or --hardware with a model from bench list models"
    )


def _profile_problem(name: str) -> str:
    """Return why no profile can be computed for a model; empty if it is listed or its config
    describes it."""
    if name == "tiny":
        return "tiny is for tests on a CPU"
    try:
        model(name)
    except InvalidInput as error:
        return str(error)
    return ""


def _measured_costs(config: ServerConfig, file: str) -> tuple[CostCurve, str]:
    measured = measured_for(file, config.model, config.gpus, config.kv_cache_dtype)
    exact = costs(measured.profile(), step_tokens=config.step_tokens, offload=False)
    curve = CostCurve(
        **measured.curve.model_dump(),
        reload_s_per_token=measured.reload_s_per_token,
        step_tokens=config.step_tokens,
        decode_step=fit_decode_step(exact, measured.max_model_len),
    )
    return curve, f"costs measured on {measured.machine}, {measured.date} ({file})"


def dram_gb(given: float | None, vllm: VllmInstallation, gpus: int | None) -> float:
    """Return the DRAM of an offload tier in GB: `given`, or this machine's default per GPU."""
    if given is not None:
        return given
    if vllm.cpu:
        return CPU_DRAM_GB
    hardware = hardware_here(vllm)
    return (HARDWARE[hardware].offload_gb if hardware else GPU_DRAM_GB) * (gpus or 1)


def hardware_here(vllm: VllmInstallation) -> str | None:
    """Return the name in `HARDWARE` of this machine's GPU; None if it is not listed."""
    return None if vllm.cpu else listed_gpu(next(iter(gpu_names()), ""))


def listed_gpu(driver_name: str) -> str | None:
    """Return the name in `HARDWARE` of a GPU that the driver calls `NVIDIA H100 80GB HBM3`."""
    words = set(re.split(r"[\s-]+", driver_name))
    if words & {"Laptop", "3e"}:  # another chip, or an H20 with other memory, of the same number
        return None
    needed = {gpu.name: gpu.driver_name.split() for gpu in HARDWARE.values() if gpu.driver_name}
    found = [name for name in needed if words.issuperset(needed[name])]
    return max(found, key=lambda name: len(needed[name]), default=None)
