"""Prints the errors of analytic step times by layout, for docs/reference/profiles.md, "Layouts".

    python -m tools.layout_errors

Each step of equal batches on all GPUs is divided by the time of the operator tables
(`aiconfigurator-core`, extra `silicon`), which contain no CPU time. Takes half a minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import quantiles
from typing import NamedTuple

from harness.calibrate.operator_tables import open_tables
from servers.basics.clock import PS_PER_S
from servers.basics.errors import DoesNotFit
from servers.profiles import analytic_profile, model
from servers.profiles.cpu_time import CPU_TIME, Scheduling
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.profiles.layout import Layout
from servers.profiles.roofline import expert_times
from tools.results_tables import table

MACHINES, GPUS = ("h100", "h200", "b200"), (4, 8)
LAYOUTS = (Layout.DP_ATTN, Layout.TP)
"""The tables have no pipelines."""
MODELS = (
    "deepseek-v3",
    "qwen3-coder-30b-a3b-fp8",
    "qwen3-coder-30b-a3b",
    "qwen3-coder-480b-fp8",
    "minimax-m2.5",
    "gpt-oss-120b",
    "qwen3.5-122b-a10b",
    "qwen3.5-35b-a3b",
)
PROMPTS = "prompts of 2,048 and 8,192 tokens"


class Step(NamedTuple):
    kind: str
    tokens: int
    """Of a prompt, or turns that decode."""
    context: int
    """Cached tokens of the prompt, or tokens of each turn."""


STEPS = (
    *(Step(PROMPTS, n, cached) for n in (2048, 8192) for cached in (0, 16384)),
    *(Step("decodes of 32 and 64 turns", n, c) for n, c in ((32, 8192), (32, 16384))),
    *(Step("decodes of 32 and 64 turns", n, c) for n, c in ((64, 2048), (64, 8192))),
    *(Step("decodes of 1 and 4 turns", n, 8192) for n in (1, 4)),
)
Ratios = Mapping[tuple[str, str, Layout], Sequence[float]]
"""By weights, kind of step and layout."""


def ratios() -> Ratios:
    found: defaultdict[tuple[str, str, Layout], list[float]] = defaultdict(list)
    for name, hardware, gpus, layout in product(MODELS, MACHINES, GPUS, LAYOUTS):
        weights = "BF16" if model(name).precision == "BF16" else "FP8, MXFP4"
        for kind, ratio in _of(hardware, name, gpus, layout):
            found[weights, kind, layout].append(ratio)
    return found


def _of(hardware: str, name: str, gpus: int, layout: Layout) -> list[tuple[str, float]]:
    try:
        rank = analytic_profile(hardware, name, gpus=gpus, layout=layout)
    except DoesNotFit:
        return []
    tables, _ = open_tables(hardware, name, gpus, None, layout=layout)
    experts = expert_times(hardware, name, gpus, KvCacheDtype.AUTO)
    cpu = CPU_TIME[Scheduling.ASYNC]
    found = []
    for kind, n, context in STEPS:
        if kind == PROMPTS:
            turns, ps = 1, rank.batch_ps([(n, context)], [])
            seconds = tables.prefill_s(n, context)
        else:
            turns, ps = n, rank.batch_ps([], [context] * n)
            seconds = tables.decode_s(n, context)
        if layout is Layout.DP_ATTN:
            ps += experts.ps(gpus * n) - experts.ps(n)
        ps -= cpu.step_ps + turns * cpu.sequence_ps
        found.append((kind, ps / PS_PER_S / seconds))
    return found


def _spread(ratios: Sequence[float]) -> str:
    tenths = quantiles(ratios, n=10)
    return f"{tenths[4]:.2f} ({tenths[0]:.2f} to {tenths[-1]:.2f})"


if __name__ == "__main__":
    found = ratios()
    rows = [
        (weights, kind, *(_spread(found[weights, kind, each]) for each in LAYOUTS))
        for weights in ("BF16", "FP8, MXFP4")
        for kind in dict.fromkeys(step.kind for step in STEPS)
    ]
    columns = (f"`{each}` ÷ tables, median (P10 to P90)" for each in LAYOUTS)
    print(table(("weights", "steps", *columns), rows))
