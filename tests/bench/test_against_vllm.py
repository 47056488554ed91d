"""Compare the speed of `sim` and `vllm-virtual` (vLLM's own scheduler in virtual time, with
fast-forward) on the same cells. Both run alternately. Prints the seconds of both and their ratio;
no time fails the test.

Needs a vLLM (`make vllm`). Only `replay` is measured, each in one process; vLLM's process has
imported vLLM and has run a cell as warm-up. Its time includes the pipe between the two processes,
about 100 us per turn. Both must give the same times to the picosecond.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import pytest

from harness.load.arrivals import parse_arrivals
from harness.replay.virtual import replay
from servers.basics.errors import Unavailable
from servers.profiles import analytic_profile, costs
from servers.remote.client import EngineProcess, RemoteEngine
from servers.sim import Engine, Limits
from servers.variants import make_policy, variants
from servers.vllm.launch.find_vllm import find_vllm
from servers.vllm.virtual_time.client import vllm_process
from tests.lines import into
from traces import Program, read_traces

ROUNDS = 3


@pytest.fixture(scope="module")
def vllm() -> Iterator[EngineProcess]:
    try:
        process = vllm_process(find_vllm().python)
    except Unavailable as missing:
        pytest.skip(str(missing))
    yield process
    process.close()


def play(
    name: str, programs: list[Program], jps: float, vllm: EngineProcess | None
) -> tuple[float, list[dict[str, object]]]:
    profile, limits = analytic_profile("a100-80g", "llama-3.1-8b"), Limits()
    starts_s, _ = parse_arrivals("poisson").draw(programs, jps, 1)
    turns: list[dict[str, object]] = []
    engine: Any = partial(RemoteEngine, vllm, name, profile, limits)
    if vllm is None:
        policy = make_policy(variants(name)[0], costs(profile, step_tokens=2048, offload=False))
        engine = partial(Engine, policy, profile, limits)
    started_s = time.perf_counter()
    replay(programs, starts_s, None, engine, into(turns))
    return time.perf_counter() - started_s, turns


@pytest.mark.parametrize("jps", [0.05, 0.3])
@pytest.mark.parametrize("name", ["fcfs", "continuum"])
def test_against_vllms_scheduler_with_fast_forward(
    name: str,
    jps: float,
    vllm: EngineProcess,
    benchmark: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    programs = read_traces(["swe-bench"]).programs[: None if benchmark.enabled else 8]
    play("fcfs", programs[:5], jps, vllm)
    durations_s: dict[str, list[float]] = {"sim": [], "vllm": []}

    def both() -> None:
        ours_s, ours = play(name, programs, jps, None)
        theirs_s, theirs = play(name, programs, jps, vllm)
        assert ours == theirs
        durations_s["sim"].append(ours_s)
        durations_s["vllm"].append(theirs_s)

    benchmark.pedantic(both, rounds=ROUNDS if benchmark.enabled else 1, iterations=1)
    sim_s, vllm_s = median(durations_s["sim"]), median(durations_s["vllm"])
    ratio = median(b / a for a, b in zip(durations_s["sim"], durations_s["vllm"], strict=True))
    with capsys.disabled():
        print(
            f"\n{name}, {jps} jobs/s, {len(programs)} programs: sim {sim_s:.2f} s, "
            f"vllm-virtual {vllm_s:.2f} s, {ratio:.0f}x"
        )
    benchmark.extra_info["vllm_virtual_over_sim"] = round(ratio, 1)
