"""Experiments that are not sweeps: each has its own measurement and checks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from harness.calibrate.verify_pins import EXPENSIVE_COSTS, LENGTHS, expected_blocks
from reports.experiment.claims import Finding
from servers.errors import MeasurementUnavailable, VllmUnavailable
from servers.variants import make_policy, variants
from servers.vllm.launch.find_vllm import find_vllm
from servers.vllm.virtual_time.client import environment
from servers.vllm.virtual_time.overhead import against_stock

Measure = Callable[[], list[Finding]]

NOTE_BLOCKS = [5, 9, 19, 26, 0]
"""Execution note §4.2, counted over 5,706 blocks (SEEDS §5)."""
FULL_BLOCKS = [4, 8, 18, 25, 0]
ROUNDS = 40
OVERHEAD_WITHIN_S = 400.0
TABLE_4 = (("continuum", 0.96 / 0.95, 1.05), ("autellix", 0.82 / 0.95, 1.0))
"""Variant, published ratio of a step's time to stock vLLM's, and the highest accepted ratio. v3,
Table 4, without offload."""


def pins() -> list[Finding]:
    """Execution note §4, in virtual time; `bench verify pins` checks a real vLLM."""
    rows = (
        ("continuum-preview", NOTE_BLOCKS, "the fork holds the partly filled last block too"),
        ("continuum", FULL_BLOCKS, "only what a next turn can reuse is held"),
    )
    found = []
    for name, published, says in rows:
        policy = make_policy(variants(name)[0], EXPENSIVE_COSTS)
        held = expected_blocks(policy, 1.0, 16, 5402)
        found.append(Finding(f"{name}: {says}", _row(published), _row(held), held == published))
    return found


def _row(blocks: list[int]) -> str:
    return ", ".join(map(str, blocks)) + f" blocks after the {len(LENGTHS)} turns"


def scheduler_overhead() -> list[Finding]:
    """CPU time of a real vLLM's scheduling step under our plug-in, over stock's."""
    try:
        vllm = find_vllm()
    except VllmUnavailable as missing:
        raise MeasurementUnavailable(str(missing)) from None
    print(f"scheduling steps of vLLM {vllm.version}, about two minutes", file=sys.stderr)
    try:
        completed = subprocess.run(  # noqa: S603
            [vllm.python, "-m", "servers.vllm.virtual_time.overhead", "--json", str(ROUNDS)],
            capture_output=True,
            text=True,
            check=True,
            timeout=OVERHEAD_WITHIN_S,
            env=environment(),
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or ["no error output"]
        raise MeasurementUnavailable(f"vLLM's scheduler did not run: {last[0]}") from None
    except subprocess.TimeoutExpired:
        raise MeasurementUnavailable(
            f"vLLM's scheduler took more than {OVERHEAD_WITHIN_S:.0f} s"
        ) from None
    times = json.loads(completed.stdout)
    noise = against_stock(times, "stock again")
    found = []
    for name, published, most in TABLE_4:
        ratio = against_stock(times, name)
        says = f"a step under {name} takes at most {most:g} times stock vLLM's"
        ours = f"{ratio:.2f}x (stock against itself {noise:.2f}x)"
        found.append(Finding(says, f"{published:.2f}x", ours, ratio <= most))
    return found


MEASURES: dict[str, Measure] = {"pins": pins, "scheduler-overhead": scheduler_overhead}
