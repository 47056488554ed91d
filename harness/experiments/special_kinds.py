"""Experiments with their own measurement and checks instead of a sweep or a workload."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from harness.calibrate.verify_pins import EXPENSIVE_COSTS, LENGTHS, expected_blocks
from harness.experiments.parsing import parsing
from harness.experiments.retention import retention
from reports.experiment.judge import Finding
from reports.experiment.significance import Outcome, within
from reports.statistics.bootstrap import Estimate
from reports.statistics.over_seeds import geometric_mean
from servers.basics.errors import MeasurementUnavailable, Unavailable
from servers.variants import make_policy, variants
from servers.vllm.launch.find_vllm import find_vllm
from servers.vllm.virtual_time.client import environment
from servers.vllm.virtual_time.overhead import against_stock

NOTE_BLOCKS = [5, 9, 19, 26, 0]
"""Blocks pinned after each turn: execution note §4.2, counted over 5,706 blocks (SEEDS §5)."""
FULL_BLOCKS = [4, 8, 18, 25, 0]
"""Of these, the completely filled blocks."""
ROUNDS = 40
GROUPS = 10
OVERHEAD_TIMEOUT_S = 400.0
TABLE_4 = (("continuum", 0.96 / 0.95, 1.05), ("autellix", 0.82 / 0.95, 1.0))
"""Variant, published ratio of its step time to stock vLLM's, and the highest accepted ratio
(v3, Table 4, without offload)."""


def pins() -> list[Finding]:
    """Count pinned blocks in virtual time (execution note §4). `bench verify pins` uses vLLM."""
    rows = (
        ("continuum-preview", NOTE_BLOCKS, "the fork also pins the partly filled last block"),
        ("continuum", FULL_BLOCKS, "pins only blocks that the next turn can reuse"),
    )
    findings = []
    for name, published, claim in rows:
        policy = make_policy(variants(name)[0], EXPENSIVE_COSTS)
        pinned = expected_blocks(policy, 1.0, 16, 5402)
        outcome = Outcome.HOLDS if pinned == published else Outcome.FAILS
        findings.append(Finding(f"{name}: {claim}", _format(published), _format(pinned), outcome))
    return findings


def _format(blocks: list[int]) -> str:
    return ", ".join(map(str, blocks)) + f" blocks after the {len(LENGTHS)} turns"


def scheduler_overhead() -> list[Finding]:
    """Compare the CPU time of a scheduling step under Turnstile's plug-in with stock vLLM's."""
    try:
        vllm = find_vllm()
    except Unavailable as error:
        raise MeasurementUnavailable(str(error)) from None
    print(f"measuring scheduling steps of vLLM {vllm.version}, about two minutes", file=sys.stderr)
    try:
        completed = subprocess.run(  # noqa: S603
            [vllm.python, "-m", "servers.vllm.virtual_time.overhead", "--json", str(ROUNDS)],
            capture_output=True,
            text=True,
            check=True,
            timeout=OVERHEAD_TIMEOUT_S,
            env=environment(),
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines() or ["no error output"]
        raise MeasurementUnavailable(f"vLLM's scheduler did not run: {lines[-1]}") from None
    except subprocess.TimeoutExpired:
        raise MeasurementUnavailable(
            f"vLLM's scheduler took more than {OVERHEAD_TIMEOUT_S:.0f} s"
        ) from None
    times = json.loads(completed.stdout)
    findings = []
    for name, published, limit in TABLE_4:
        ratio = _over_stock(times, name)
        noise = _over_stock(times, "stock again")
        claim = f"a step under {name} takes at most {limit:g} times as long as in stock vLLM"
        ours = f"{_interval(ratio)} (stock against itself {_interval(noise)})"
        outcome = within(ratio, None, limit)
        findings.append(Finding(claim, f"{published:.2f}x", ours, outcome))
    return findings


def _over_stock(times_us: Mapping[str, Sequence[float]], name: str) -> Estimate:
    """Return the ratio to stock over rounds; the median of each tenth of them is one value, since
    single rounds have outliers."""
    rounds = len(times_us[name])
    parts = [range(first, rounds, GROUPS) for first in range(GROUPS)]
    medians = [
        against_stock({n: [times_us[n][k] for k in part] for n in (name, "stock")}, name)
        for part in parts
    ]
    return geometric_mean(medians)


def _interval(ratio: Estimate) -> str:
    return f"{ratio.value:.2f}x ({ratio.low:.2f}x to {ratio.high:.2f}x)"


MEASURES: dict[str, Callable[[], list[Finding]]] = {
    "pins": pins,
    "parsing": parsing,
    "retention": retention,
    "scheduler-overhead": scheduler_overhead,
}
