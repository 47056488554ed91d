"""Starts `servers.vllm.virtual_time.process` in vLLM's environment."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from servers.basics.checkout import ROOT
from servers.remote.client import EngineProcess
from servers.vllm.launch.policy_module import link_modules
from servers.vllm.models.model_folder import set_compile_cache

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def environment() -> dict[str, str]:
    """Return the environment to run a module of Turnstile with vLLM's interpreter: Turnstile's
    sources on the path, and settings that silence vLLM."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(paths)}
    set_compile_cache(env)
    return env


def vllm_process(python: str, policy_module: Path | None = None) -> EngineProcess:
    """Start the process. `policy_module` is the file or folder of an external policy, which may be
    missing in vLLM's environment."""
    env = environment()
    modules = None
    if policy_module is not None:
        modules = tempfile.TemporaryDirectory(prefix="turnstile-")
        links = link_modules(Path(modules.name), policy_module)
        env["PYTHONPATH"] += os.pathsep + str(links)
    command = [python, "-m", "servers.vllm.virtual_time.process"]
    return EngineProcess("vLLM", command, env, modules)
