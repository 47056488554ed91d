"""Strides on a profile of operator tables take as long as their steps, to the picosecond."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given

from servers.profiles import profile_of
from tests.sim.test_engine_invariants import run
from tests.sim.worlds import World, worlds

KNOTS = ((1, 9_000_000_000), (3, 9_100_000_001), (7, 9_900_000_000), (64, 12_345_678_901))


@pytest.mark.parametrize("name", ["fcfs", "continuum", "infercept"])
@given(world=worlds())
def test_strides_change_nothing_with_operator_tables(name: str, world: World) -> None:
    tables = {
        **asdict(world.profile),
        "knots": KNOTS,
        "decode_ps": 123_456_789,
        "prefill_ps": 98_765_432,
        "mean_context_ps": 7_777_777,
    }
    world = replace(world, profile=profile_of(tables))
    turns, events, done = run(world, name)
    single_turns, single_events, single_done = run(world, name, strides=False)
    assert (turns, events, done.virtual_s) == (
        single_turns,
        single_events,
        single_done.virtual_s,
    )
