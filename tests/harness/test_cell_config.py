"""A cell records its workload and machine, so that a report can judge its numbers."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from msgspec import to_builtins
from small import programs, run_sweep, small_plan

from harness.load.option import settings_of
from harness.load.server_config import server_config, server_record
from harness.load.settings import Machine, Server, SweepSettings
from harness.load.workload import Workload
from harness.sweep.resolve import resolve
from reports.metrics.cells import collect
from reports.run_folder.read import load_run
from servers.profiles import analytic_profile
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.variants import variant
from servers.vllm.launch.command_line import ServerConfig
from traces import Program
from traces.program import SharedPrefix

SYSTEM, OTHER = SharedPrefix("system", 160), SharedPrefix("other", 80)


def with_prefixes(*prefixes: SharedPrefix | None) -> Workload:
    all_programs: tuple[Program, ...] = tuple(
        replace(program, prefix=prefix)
        for program, prefix in zip(programs(len(prefixes)), prefixes, strict=True)
    )
    return Workload("small", all_programs, "0" * 64, ())


def test_shared_prefix_tokens_count_each_use_of_a_prefix_after_the_first() -> None:
    recorded = with_prefixes(SYSTEM, None, OTHER, SYSTEM, SYSTEM).record()
    assert recorded.shared_prefix_tokens == 2 * 160


def test_with_enough_memory_hits_are_within_a_block_per_turn_of_the_bound(tmp_path: Path) -> None:
    plan = small_plan("fcfs", jps=(0.01,))
    profile = analytic_profile("a100-80g", "llama-3.1-8b", kv_blocks=10_000)
    engine = replace(plan.engine, profile=profile)  # type: ignore[type-var]
    workload = with_prefixes(SYSTEM, SYSTEM, SYSTEM)
    run_sweep(replace(plan, engine=engine, workload=workload), tmp_path / "run", workers=1)
    (cell,) = collect(load_run(tmp_path / "run")).cells.to_dict("records")
    # Of 3000 tokens, each of three programs keeps 550 + 1050; two also share the prefix.
    assert cell["hit_bound_ratio"] == pytest.approx((3 * 1600 + 2 * 160) / (3 * 3000))
    blocks = 9 * profile.block_tokens / (3 * 3000)
    assert cell["hit_bound_ratio"] - blocks <= cell["hit_ratio"] <= cell["hit_bound_ratio"]


@pytest.mark.parametrize(
    ("model", "given", "gpus"), [("llama-3.1-8b", None, 1), ("llama-3.1-8b", 2, 2)]
)
def test_a_cell_in_virtual_time_records_its_number_of_gpus(
    model: str, given: int | None, gpus: int
) -> None:
    plan = resolve(SweepSettings(policies="fcfs", machine=Machine(model=model, gpus=given)))
    assert plan.engine.settings(plan.variants[0]).gpus == gpus


def test_a_cell_records_the_format_of_the_kv_cache_unless_it_is_the_default() -> None:
    cells = {
        dtype: resolve(
            SweepSettings(policies="fcfs", machine=Machine(kv_cache_dtype=dtype))
        ).engine.settings(variant("fcfs"))
        for dtype in KvCacheDtype
    }
    default, fp8 = cells[KvCacheDtype.AUTO], cells[KvCacheDtype.FP8]
    assert "kv_cache_dtype" not in to_builtins(default)
    assert fp8.kv_cache_dtype == "fp8"
    assert default.profile.kv_bytes_per_token == 2 * fp8.profile.kv_bytes_per_token


def test_a_live_server_gets_and_records_the_options_of_the_same_names() -> None:
    named = {*settings_of(Machine), *settings_of(Server)}
    set_otherwise = {"policy", "offload", "mounts", "recorded_answers", "flags", "env"}
    assert {field.name for field in fields(ServerConfig)} - named == set_otherwise

    server = Server(weights="random", replicas=2, turn_timeout_s=9.0, vllm_flags=("--seed", "1"))
    config = server_config(Machine(kv_blocks=600, step_tokens=512), server, "tiny")
    assert (config.kv_blocks, config.step_tokens, config.weights) == (600, 512, "random")
    assert to_builtins(server_record(config, server, vllm="0.32.0")) == {
        "vllm": "0.32.0",
        "weights": "random",
        "replicas": 2,
        "kv_blocks": 600,
        "flags": ("--seed", "1"),
        "turn_timeout_s": 9.0,
        "prompts": "tokens",
    }
