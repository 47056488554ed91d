"""Measures the CPU time of a scheduling step under Turnstile's plug-in and under stock vLLM."""

from __future__ import annotations

import json
import subprocess
import sys

from reports.experiment.judge import Finding
from reports.experiment.significance import within
from reports.statistics.bootstrap import Estimate
from reports.statistics.over_seeds import geometric_mean
from servers.basics.errors import MeasurementUnavailable, Unavailable
from servers.processes.environments import last_line
from servers.vllm.launch.find_vllm import find_vllm
from servers.vllm.virtual_time.client import environment

MODULE = "servers.vllm.virtual_time.overhead"
OVERHEAD_TIMEOUT_S = 1200.0
"""Much longer than the minute of a machine without other work."""
TABLE_4 = (("continuum", 0.96 / 0.95, 1.05), ("autellix", 0.82 / 0.95, 1.0))
"""Variant, published ratio of its step time to stock vLLM's, and the highest accepted ratio
(v3, Table 4, without offload)."""


def scheduler_overhead() -> list[Finding]:
    """Return a finding for each variant of Table 4. Raises MeasurementUnavailable without vLLM."""
    try:
        vllm = find_vllm()
    except Unavailable as error:
        raise MeasurementUnavailable(str(error)) from None
    print(f"measuring scheduling steps of vLLM {vllm.version}, about a minute", file=sys.stderr)
    try:
        completed = subprocess.run(  # noqa: S603
            [vllm.python, "-m", MODULE, "--steady", *[row[0] for row in TABLE_4]],
            capture_output=True,
            text=True,
            check=False,
            timeout=OVERHEAD_TIMEOUT_S,
            env=environment(),
        )
    except subprocess.TimeoutExpired:
        raise MeasurementUnavailable(
            f"vLLM's scheduler took more than {OVERHEAD_TIMEOUT_S:.0f} s"
        ) from None
    if completed.returncode:
        raise MeasurementUnavailable(f"vLLM's scheduler did not run: {last_line(completed)}")
    measured = [json.loads(line) for line in completed.stdout.splitlines()]
    findings = []
    for (name, published, limit), costs in zip(TABLE_4, measured, strict=True):
        ratio, noise = geometric_mean(costs["time_ratios"]), geometric_mean(costs["noise_ratios"])
        claim = f"a step under {name} takes at most {limit:g} times as long as in stock vLLM"
        ours = f"{_interval(ratio)} (stock against itself {_interval(noise)})"
        outcome = within(ratio, None, limit)
        findings.append(Finding(claim, f"{published:.2f}x", ours, outcome))
    return findings


def _interval(ratio: Estimate) -> str:
    return f"{ratio.value:.2f}x ({ratio.low:.2f}x to {ratio.high:.2f}x)"
