"""Prints a hash of all results of random workloads, for each variant.

`python -m tests.compiled.worlds`. Every process draws the same workloads. Each of them runs twice,
at first at time 0, then so late that picoseconds exceed the integers that floats can express.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from servers.sim import engine
from tests.sim.test_engine_invariants import VARIANTS, run
from tests.sim.worlds import World, worlds

EXAMPLES = 20
LATE_S = 123_456.789
DIGESTS = {name: sha256() for name in VARIANTS}
# Hypothesis also draws numbers that stand in the imported sources, which compiled modules lack.
providers._get_local_constants = lambda: Constants()


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(world=worlds())
def simulate(world: World) -> None:
    late = replace(world, starts_s=[start_s + LATE_S for start_s in world.starts_s])
    for name, digest in DIGESTS.items():
        digest.update(msgspec.json.encode([run(world, name), run(late, name)]))


if __name__ == "__main__":
    print("engine", engine.__file__)
    simulate()
    for name, digest in DIGESTS.items():
        print(name, digest.hexdigest())
