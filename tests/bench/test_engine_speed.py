"""Turns simulated per second and core in contended cells, by policy and origin of step times."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from harness.load.arrivals import parse_arrivals
from harness.replay.virtual import replay
from servers.profiles import costs
from servers.profiles.files import profile_for
from servers.profiles.step_times import StepTimes
from servers.records import TurnRecord
from servers.sim import Engine, Limits, Offload
from servers.variants import make_policy, variants
from traces import read_traces


def simulate(name: str, step_times: StepTimes, programs: list[Any], starts_s: list[float]) -> int:
    variant = variants(name)[0]
    profile = profile_for(
        "a100-80g", "llama-3.1-8b", offload=variant.offload, step_times=step_times
    )
    turns: list[TurnRecord] = []
    policy = make_policy(variant, costs(profile, step_tokens=2048, offload=variant.offload))
    offload = Offload(100) if variant.offload else None
    engine = partial(Engine, policy, profile, Limits(), offload)
    replay(programs, starts_s, None, engine, turns.append, bound=variant.bound)
    return len(turns)


@pytest.mark.parametrize("step_times", StepTimes)
@pytest.mark.parametrize("name", [v.name for v in variants("all")])
def test_turns_per_second_in_a_contended_cell(
    name: str, step_times: StepTimes, benchmark: Any
) -> None:
    programs = read_traces(["swe-bench"]).programs
    starts_s, _ = parse_arrivals("poisson").draw(programs, 0.3, 1)
    turns = benchmark(simulate, name, step_times, programs, starts_s)
    if benchmark.stats is not None:
        benchmark.extra_info["turns_per_s"] = round(turns / benchmark.stats.stats.median)
