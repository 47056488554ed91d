"""What vLLM is started with: its command line and environment.

In: what a person asked for (`ServerConfig`), where vLLM is, what to load. Out: flags, environment
variables, the policy's costs. Extra flags come last, so that they win.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servers.errors import CannotServe
from servers.profiles import HARDWARE, MODELS
from servers.profiles.measured import is_file, measured_for
from servers.variants import variant, variants
from servers.vllm.launch.cost_curve import TINY_ON_CPU, CostCurve, analytic_costs
from servers.vllm.launch.find_vllm import Installed, gpu_names
from servers.vllm.launch.offload_tier import Offloading
from servers.vllm.models.model_folder import Loadable

SCHEDULER = "servers.vllm.plugin.scheduler.TurnstileScheduler"
CPU_BLOCK_TOKENS, GPU_BLOCK_TOKENS = 32, 16
CPU_KV_GIB = "1"
CPU_DRAM_GB, GPU_DRAM_GB = 1.0, 100.0
"""For offload, where the machine is none of `servers.profiles`: small, or as the sources' A100."""


_ELSEWHERE = (
    "a server of ours listens on 127.0.0.1; for others put bench gateway --listen before it"
)
_SEEN = "command lines are kept and shown to everybody on the machine; set {} in the environment"
NOT_GIVEN = {
    "--host": _ELSEWHERE,
    "--uds": _ELSEWHERE,
    "--api-key": _SEEN.format("VLLM_API_KEY"),
    "--hf-token": _SEEN.format("HF_TOKEN"),
}
"""Flags of vLLM that nobody may give, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    model: str = "tiny"
    policy: str | None = None
    """A policy by name or by dotted path, with its arguments; None: vLLM without our plug-in."""
    weights: str = "auto"
    hardware: str | None = None
    """Whose analytic profile gives the policy's costs, or the file of a measured one; None: the GPU
    found here."""
    costs: CostCurve | None = None
    """Instead of a profile's."""
    kv_blocks: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 256
    step_tokens: int = 2048
    gpus: int | None = None
    offload: Offloading | None = None
    image: str | None = None
    """A container's, which has vLLM; None: an environment of this machine."""
    mounts: tuple[Path, ...] = ()
    """Folders that a container sees besides the model and its own, read-only."""
    flags: tuple[str, ...] = ()
    """vLLM's own."""
    env: Mapping[str, str] = field(default_factory=dict)


def check_policy(name: str) -> None:
    """`name`: of the policy alone."""
    found = variants(name)
    if len(found) != 1:
        raise CannotServe(f"--policy {name}: a server runs one policy; name one")
    if found[0].bound:
        raise CannotServe(f"--policy {name}: it knows the trace's future, which no server does")


def flags(
    wanted: ServerConfig, vllm: Installed, load: Loadable, port: int, tier: tuple[str, ...] = ()
) -> tuple[str, ...]:
    _refuse(wanted.flags)
    chosen = [
        *("--model", load.path, "--served-model-name", load.name, *load.flags),
        *("--host", "127.0.0.1", "--port", str(port), "--uvicorn-log-level", "warning"),
        # Older ones take requests that pages send by their visitors' browsers.
        *("--allowed-origins", "[]"),
        *("--max-num-seqs", str(wanted.max_num_seqs)),
        *("--max-num-batched-tokens", str(wanted.step_tokens)),
        *("--generation-config", "vllm", "--enable-prefix-caching"),
        "--enable-prompt-tokens-details",
    ]
    if vllm.has_request_metrics:
        chosen.append("--enable-per-request-metrics")
    if vllm.cpu:
        chosen += ["--enforce-eager", "--block-size", str(CPU_BLOCK_TOKENS)]
    else:
        chosen += ["--tensor-parallel-size", str(tensor_parallel(wanted))]
    if wanted.kv_blocks is not None:
        chosen += ["--num-gpu-blocks-override", str(wanted.kv_blocks)]
    if (longest := longest_context(wanted, vllm, load)) is not None:
        chosen += ["--max-model-len", str(longest)]
    if wanted.policy is not None:
        chosen += ["--scheduler-cls", SCHEDULER]
    return (*chosen, *tier, *wanted.flags)


def _refuse(given: Sequence[str]) -> None:
    for flag in given:
        if (why := NOT_GIVEN.get(flag.partition("=")[0].replace("_", "-"))) is not None:
            raise CannotServe(f"{flag.partition('=')[0]}: {why}")


def tensor_parallel(wanted: ServerConfig) -> int:
    """GPUs that hold one copy of the model together."""
    return wanted.gpus or (MODELS[wanted.model].gpus if wanted.model in MODELS else 1)


def longest_context(wanted: ServerConfig, vllm: Installed, load: Loadable) -> int | None:
    """What was asked for, or else what the model and the pool can hold; one block of the pool is
    vLLM's own (the null block)."""
    if wanted.max_model_len is not None or wanted.kv_blocks is None or load.max_context is None:
        return wanted.max_model_len
    block_tokens = CPU_BLOCK_TOKENS if vllm.cpu else GPU_BLOCK_TOKENS
    pool = (wanted.kv_blocks - 1) * block_tokens
    if pool < block_tokens:
        raise CannotServe(f"--kv-blocks {wanted.kv_blocks}: vLLM keeps one; give at least 2")
    return min(load.max_context, pool)


def environment(
    wanted: ServerConfig, vllm: Installed, load: Loadable, folder: Path, on_path: Path
) -> dict[str, str]:
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
    if os.path.isabs(load.path):
        env["HF_HUB_OFFLINE"] = "1"
    if vllm.cpu:
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_KV_GIB)
    for name in [name for name in env if name.startswith("TURNSTILE_")]:
        del env[name]
    path = [str(on_path)]
    if wanted.policy is not None:
        if variant(wanted.policy).module_root is not None:
            path.append(os.getcwd())
        env |= {
            "TURNSTILE_POLICY": wanted.policy,
            "TURNSTILE_COSTS": str(folder / "costs.json"),
            "TURNSTILE_EVENTS": str(folder / "engine.jsonl"),
        }
    if wanted.policy is not None or wanted.offload is not None:
        env["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [env.get("PYTHONPATH")])])
    return {**env, **wanted.env}


def policy_costs(wanted: ServerConfig, vllm: Installed) -> tuple[CostCurve, str]:
    """The curve, and where it is from. Reloads cost something with a tier only."""
    curve, told = _costs(wanted, vllm)
    if wanted.offload is None:
        return curve.model_copy(update={"reload_s_per_token": None}), told
    if curve.reload_s_per_token is None:
        raise CannotServe(
            f"--policy {wanted.policy}, over an offload tier: the costs ({told}) do not say what a "
            "reload takes; add reload_s_per_token"
        )
    return curve, told


def _costs(wanted: ServerConfig, vllm: Installed) -> tuple[CostCurve, str]:
    if wanted.costs is not None:
        return wanted.costs, "costs as given"
    if wanted.hardware is not None and is_file(wanted.hardware):
        return _measured_costs(wanted, wanted.hardware)
    if wanted.hardware is not None and wanted.model not in MODELS:
        raise CannotServe(
            f"--hardware {wanted.hardware}: no profile of {wanted.model} says what its prefills "
            "cost there; give --costs FILE instead"
        )
    if wanted.model in MODELS and (hardware := wanted.hardware or hardware_here(vllm)):
        curve = analytic_costs(
            wanted.model, hardware, gpus=wanted.gpus, step_tokens=wanted.step_tokens
        )
        return curve, f"costs from the analytic profile of {wanted.model} on {hardware}"
    if wanted.model == "tiny":
        curve = TINY_ON_CPU.model_copy(update={"step_tokens": wanted.step_tokens})
        elsewhere = "" if vllm.cpu else ", which this machine is not"
        return curve, f"costs are constants for tiny on two CPU cores{elsewhere}"
    raise CannotServe(
        f"--policy {wanted.policy}: what a prefill of {wanted.model} costs here is not known; "
        "give --costs FILE, or a model of bench list models with --hardware"
    )


def _measured_costs(wanted: ServerConfig, file: str) -> tuple[CostCurve, str]:
    found = measured_for(file, wanted.model, wanted.gpus)
    curve = CostCurve(
        **found.curve.model_dump(),
        reload_s_per_token=found.reload_s_per_token,
        step_tokens=wanted.step_tokens,
    )
    return curve, f"costs measured on {found.machine}, {found.date} ({file})"


def dram_gb(asked: float | None, vllm: Installed, gpus: int | None) -> float:
    """DRAM of an offload tier; the sources give it per GPU."""
    if asked is not None:
        return asked
    if vllm.cpu:
        return CPU_DRAM_GB
    here = hardware_here(vllm)
    return (HARDWARE[here].offload_gb if here else GPU_DRAM_GB) * (gpus or 1)


GPUS = {
    "a100-80g": ("A100", "80GB"),
    "a100-40g": ("A100", "40GB"),
    "h100": ("H100",),
    "h200": ("H200",),
    "b200": ("B200",),
    "l40s": ("L40S",),
    "rtx-6000-24g": ("Quadro RTX 6000",),
    "rtx-5090": ("RTX 5090",),
}
"""Words in the driver's name of each machine of `servers.profiles`."""


def hardware_here(vllm: Installed) -> str | None:
    name = "" if vllm.cpu else next(iter(gpu_names()), "")
    fits = (key for key, words in GPUS.items() if all(word in name for word in words))
    return next((key for key in fits if key in HARDWARE), None)
