"""Runs the cells of `--engine sglang-virtual` with the interpreter of SGLang's environment.

    python -m servers.sglang.virtual_time.process

Each cell runs in a fork of this process, so that SGLang is imported once.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from servers.profiles import Profile
from servers.remote.cell import Send, client_stream, run_cell
from servers.sglang.schedulers import scheduler_of, sglang_variants
from servers.sim import Limits
from servers.variants import Variant

END_OF_INPUT = 3


def declare_operators() -> torch.library.Library | None:
    """Declare torchvision's operators, until the result is deleted, if its own do not load: those
    of a build for GPUs need a torch for GPUs. SGLang imports torchvision for models with images."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    try:
        torch.ops.load_library(Path(spec.origin).with_name("_C.so"))
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


def engine(variant: Variant, profile: Profile, limits: Limits) -> partial[Any]:
    from servers.sglang.virtual_time.engine import VirtualSglang

    return partial(VirtualSglang, scheduler_of(variant), profile, limits)


def import_engine() -> None:
    """Import what cells use, once for all forks."""
    import sglang.srt.dllm.algorithm
    import sglang.srt.models.registry  # noqa: F401

    import servers.sglang.virtual_time.engine  # noqa: F401


def run_next_cell(send: Send) -> int:
    """Run the next cell of the input, and return an exit code."""
    line = sys.stdin.readline()
    if not line:
        return END_OF_INPUT
    run_cell(line, sglang_variants, engine, send)
    return 0


def main() -> int:
    send = client_stream()
    _operators = declare_operators()
    import_engine()
    gc.freeze()  # forks then do not look through what was imported
    send({"ready": True})
    while True:
        # Only the fork reads the input, so that none of it is in the buffer of this process.
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = run_next_cell(send)
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code:
            return 0 if code == END_OF_INPUT else 1


if __name__ == "__main__":
    sys.exit(main())
