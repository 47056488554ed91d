"""Starts `servers.sglang.virtual_time.process` in SGLang's environment."""

from __future__ import annotations

import os

from servers.basics.checkout import ROOT
from servers.remote.client import EngineProcess

SETTINGS = ("SGLANG_", "SGL_", "IN_BATCH_PREFIX_")
"""Beginnings of the variables that change SGLang's decisions."""


def sglang_process(python: str) -> EngineProcess:
    """Start the process, without the variables with which a user configures servers of SGLang."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        **{name: os.environ[name] for name in os.environ if not name.startswith(SETTINGS)},
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return EngineProcess("SGLang", [python, "-m", "servers.sglang.virtual_time.process"], env)
