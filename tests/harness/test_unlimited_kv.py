"""The reference `unlimited-kv` in the engine `sim`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from small import run_sweep, small_plan

from servers.policies.unlimited_kv import KV_BLOCKS
from tests.lines import read_lines


def test_with_unlimited_kv_the_context_of_each_turn_is_found_and_no_turn_waits_for_memory(
    tmp_path: Path,
) -> None:
    """Three jobs at once. Each takes 97 blocks of 16 tokens in the end, of 100."""
    plan = small_plan("fcfs,unlimited-kv", jps=(50.0,))
    profile = replace(plan.engine.profile, kv_blocks=100)
    run_sweep(replace(plan, engine=replace(plan.engine, profile=profile)), tmp_path, workers=1)
    hits, cells = {}, {}
    for name in ("fcfs", "unlimited-kv"):
        folder = tmp_path / f"{name}_jps50_seed1"
        turns = read_lines(folder / "turns.jsonl")
        hits[name] = {(t["turn"], t["device_hit_tokens"]) for t in turns}
        cells[name] = json.loads((folder / "cell.json").read_text())
    # Of 549 and 1,049 tokens in the cache the full blocks are found: 34 and 65.
    assert hits["unlimited-kv"] == {(0, 0), (1, 544), (2, 1040)}
    assert (1, 0) in hits["fcfs"]
    assert cells["unlimited-kv"]["profile"].pop("kv_blocks") == KV_BLOCKS
    assert cells["fcfs"]["profile"].pop("kv_blocks") == 100
    assert cells["fcfs"]["profile"] == cells["unlimited-kv"]["profile"]
    assert cells["unlimited-kv"]["reference"]
