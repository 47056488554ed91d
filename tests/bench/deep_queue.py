"""Simulates a cell with a deep queue, for `test_deep_queues.py`.

As a process, it prints the CPU microseconds per turn of one cell for each line on stdin, which has
the numbers of programs in flight and of turns, and a variant.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from functools import partial

from harness.replay.virtual import Replay
from servers.profiles import costs
from servers.profiles.files import profile_for
from servers.records.turns import TurnRecord
from servers.sim import Engine, Limits, Offload
from servers.variants import make_policy, variants
from traces import Program, Turn

KV_BLOCKS = 4000
"""64,000 tokens: some 15 programs run at a time."""
TOOLS = ("ls", "pytest", "git")
MOST_S = 10.0
"""CPU time after which a cell stops."""


def programs(seed: int) -> Iterator[Program]:
    """Yield programs of up to 16 turns, with prompts of 500 to 10,000 tokens, without end."""
    draw = random.Random(seed)
    number = 0
    while True:
        prompt, reused, turns = draw.randint(500, 3000), 0, []
        for _ in range(draw.randint(1, 16)):
            output = draw.randint(10, 100)
            gap_s = round(draw.lognormvariate(0.5, 1.5), 3)
            turns.append(Turn(prompt, output, reused, (draw.choice(TOOLS),), None, gap_s))
            reused = prompt + output
            prompt = reused + draw.randint(20, 800)
        yield Program(f"p{number}", tuple(turns))
        number += 1


def us_per_turn(name: str, in_flight: int, turns: int) -> float:
    """Return the CPU time per turn of so many turns with so many programs in flight, without the
    first tenth of them."""
    variant = variants(name)[0]
    profile = profile_for(
        "a100-80g", "llama-3.1-8b", kv_blocks=KV_BLOCKS, offload=variant.offload is not None
    )
    offload = Offload(50) if variant.offload else None
    policy = make_policy(variant, costs(profile, step_tokens=2048, offload=offload is not None))
    every = turns // 50
    ended = 0
    times_s: list[float] = []

    def end(_: TurnRecord) -> None:
        nonlocal ended
        ended += 1
        if ended % every == 0:
            times_s.append(time.process_time())
            if ended >= turns or times_s[-1] > times_s[0] + MOST_S:
                run.engine.stop()

    source = programs(1)
    some = [next(source) for _ in range(in_flight + turns)]
    engine = partial(Engine, policy, profile, Limits(), offload)
    run = Replay(some, engine, end, oracle=bool(variant.reference))
    run.engine.run(run.starting(None, in_flight))
    first = len(times_s) // 10
    return 1e6 * (times_s[-1] - times_s[first]) / (every * (len(times_s) - 1 - first))


if __name__ == "__main__":
    for line in sys.stdin:
        in_flight, turns, name = line.split()
        print(us_per_turn(name, int(in_flight), int(turns)), flush=True)
