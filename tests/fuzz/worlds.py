"""Mutated traces that can be read are summarised, cut and replayed in virtual time."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import orjson
from msgspec import to_builtins

from harness.load.arrivals import parse_arrivals, roots
from harness.load.settings import Load
from harness.load.workload import Longest, load_workload
from harness.replay.virtual import replay
from servers.basics.errors import InvalidInput, InvalidTrace
from servers.profiles import costs
from servers.sim import Engine, Limits
from servers.variants import make_policy, variants
from tests.fuzz.loaders import folder
from tests.fuzz.mutations import mutated
from tests.fuzz.samples import TRACES
from tests.fuzz.target import Target
from tests.lines import into
from tests.sim.worlds import profile
from traces import Program
from traces.cut import cut
from traces.stats import statistics

MACHINE = profile(kv_blocks=200)
COSTS = costs(MACHINE, step_tokens=2048, offload=False)
LONGEST = MACHINE.kv_blocks * MACHINE.block_tokens
POLICIES = variants("fcfs,continuum,autellix,infercept,clairvoyant")
NAMES = ("a.jsonl", "turns.jsonl", "a.json")


def world(data: bytes) -> bool:
    name = NAMES[data[0] % len(NAMES)] if data else NAMES[0]
    path = folder() / name
    path.write_bytes(data[1:])
    try:
        load = load_workload(Load(traces=(str(path),)), Longest(LONGEST, "the memory"))
    except InvalidInput:
        return False
    orjson.dumps([statistics(load.programs).as_json(), to_builtins(load.record())])
    _replay(list(load.programs), data)
    try:
        changed = cut(load.programs, jobs=1, max_turns=2, token_scale=0.5, gap_scale=2.0)
    except InvalidTrace:  # twice a gap may exceed the maximum
        return True
    _replay(changed, data)
    return True


def _replay(programs: list[Program], data: bytes) -> None:
    lines: list[Any] = []
    variant = POLICIES[len(data) % len(POLICIES)]
    arrivals = parse_arrivals(("poisson", "closed:2")[len(data) % 2])
    starts_s, in_flight = arrivals.draw(programs, 0.5, 1)
    engine = partial(Engine, make_policy(variant, COSTS), MACHINE, Limits())
    done = replay(
        programs, starts_s, in_flight, engine, into(lines), oracle=bool(variant.reference)
    )
    assert done.finished_programs == len(roots(programs)) or any(p.fork for p in programs), done
    assert len(lines) == sum(len(program.turns) for program in programs)
    orjson.dumps([to_builtins(done), lines])


def _make(random: Random) -> bytes:
    index = random.randrange(len(NAMES))
    return bytes([index]) + mutated(random.choice(TRACES[NAMES[index]]), random)


TARGETS = [Target("virtual replay", _make, world, 1)]
