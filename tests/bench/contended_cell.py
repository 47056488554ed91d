"""Simulates a contended cell, for `test_engine_speed.py`.

As a process, whose argument is the number of programs, it prints the number of turns and the CPU
seconds of one cell for each line on stdin, which names a variant.
"""

from __future__ import annotations

import sys
import time
from functools import partial

from harness.load.arrivals import parse_arrivals
from harness.replay.virtual import replay
from servers.profiles import costs
from servers.profiles.cpu_time import StepTimes
from servers.profiles.files import profile_for
from servers.records.turns import TurnRecord
from servers.sim import Engine, Limits, Offload
from servers.variants import make_policy, variants
from traces import Program, read_traces

PROGRAMS = 100


def load(count: int) -> tuple[list[Program], list[float]]:
    programs = list(read_traces(["swe-bench"]).programs)[:count]
    starts_s, _ = parse_arrivals("poisson").draw(programs, 0.3, 1)
    return programs, starts_s


def simulate(
    name: str, step_times: StepTimes, programs: list[Program], starts_s: list[float]
) -> int:
    """Return the number of turns."""
    variant = variants(name)[0]
    offloads = variant.offload is not None
    profile = profile_for(
        "a100-80g", "llama-3.1-8b", offload=variant.offload, step_times=step_times
    )
    turns: list[TurnRecord] = []
    policy = make_policy(variant, costs(profile, step_tokens=2048, offload=offloads))
    engine = partial(Engine, policy, profile, Limits(), Offload(100) if offloads else None)
    replay(programs, starts_s, None, engine, turns.append, oracle=bool(variant.reference))
    return len(turns)


if __name__ == "__main__":
    cell = load(int(sys.argv[1]))
    for line in sys.stdin:
        started_s = time.process_time()
        count = simulate(line.strip(), StepTimes.TABLES, *cell)
        print(count, time.process_time() - started_s, flush=True)
