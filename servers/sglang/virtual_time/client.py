"""Starts `servers.sglang.virtual_time.process` in SGLang's environment."""

from __future__ import annotations

import os

from servers.remote.client import EngineProcess
from servers.sglang.find_sglang import ROOT

RESERVED_TOKENS = 7
"""SGLang refuses prompts, and shortens answers, that leave fewer slots of its KV memory free."""


def sglang_process(python: str) -> EngineProcess:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return EngineProcess("SGLang", [python, "-m", "servers.sglang.virtual_time.process"], env)
