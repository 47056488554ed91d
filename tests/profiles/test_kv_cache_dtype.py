"""`--kv-cache-dtype fp8`: KV bytes, capacity and reloads by arithmetic, and what stays the same."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from servers.basics.errors import InvalidInput
from servers.profiles import Profile, analytic_profile, costs, hardware, model
from servers.profiles.cpu_time import StepTimes
from servers.profiles.files import measured_for, notes_for, profile_for
from servers.profiles.kv_budget import MemoryUse, default_gpus, kv_budget_bytes
from servers.profiles.kv_cache_dtype import KvCacheDtype, with_kv_cache
from servers.vllm.launch.cost_curve import costs_on
from tests.profiles.test_measured import measured

FP8 = KvCacheDtype.FP8
STEPS = {"base_ps", "weights_ps", "token_ps", "sequence_ps", "context_ps", "pair_ps", "request_ps"}


@pytest.mark.parametrize(
    ("name", "gpus", "size"),
    [
        ("llama-3.1-8b", 1, 32 * 2 * 8 * 128),
        ("llama-3.1-70b", 4, 80 * 2 * 8 * 128),
        ("gemma-3-12b", 1, 48 * 2 * 8 * 256),
        # a latent vector of 512 + 64 entries per layer, which each GPU copies
        ("deepseek-v3", 8, 61 * (512 + 64) * 8),
    ],
)
def test_each_kv_entry_has_one_byte(name: str, gpus: int, size: int) -> None:
    assert with_kv_cache(model(name), FP8).kv_bytes_per_token_on(gpus) == size
    assert profile_for("b200", name, gpus=gpus, kv_cache_dtype=FP8).kv_bytes_per_token == size
    assert profile_for("b200", name, gpus=gpus).kv_bytes_per_token == 2 * size


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-12b", "gpt-oss-20b", "deepseek-v3"])
def test_the_pool_has_twice_as_many_blocks_of_the_same_groups(name: str) -> None:
    plain, fp8 = (profile_for("b200", name, kv_cache_dtype=dtype) for dtype in KvCacheDtype)
    # blocks are whole, so that the freed half of the bytes may hold one more
    assert fp8.kv_blocks - 2 * plain.kv_blocks in (0, 1)
    assert (fp8.block_tokens, fp8.kv_groups) == (plain.block_tokens, plain.kv_groups)


def test_an_analytic_decode_reads_half_the_bytes_and_attention_computes_in_16_bits() -> None:
    plain = analytic_profile("a100-80g", "llama-3.1-8b")
    fp8 = analytic_profile("a100-80g", "llama-3.1-8b", kv_cache_dtype=FP8)
    # 65,536 bytes at 0.75 × 2039 GB/s
    assert fp8.context_ps == 42_855
    assert steps(fp8) == steps(plain) | {"context_ps": 42_855}


def test_step_times_of_tables_stay_those_of_16_bits_and_a_note_says_so() -> None:
    plain, fp8 = (profile_for("h100", "llama-3.1-8b", kv_cache_dtype=d) for d in KvCacheDtype)
    assert fp8.provenance == "operator-table"
    assert fp8 == replace(
        plain, kv_blocks=fp8.kv_blocks, kv_bytes_per_token=plain.kv_bytes_per_token // 2
    )
    by_default = notes_for("h100", "llama-3.1-8b", plain)
    added = set(notes_for("h100", "llama-3.1-8b", fp8, kv_cache_dtype=FP8)) - set(by_default)
    (note,) = added
    assert "FP8 (--kv-cache-dtype fp8)" in note
    assert note.endswith("operator tables with KV in 16 bits")


@pytest.mark.parametrize("step_times", StepTimes)
def test_a_note_names_the_format_where_step_times_are_analytic(step_times: StepTimes) -> None:
    profile = profile_for("rtx-4090", "llama-3.1-8b", kv_cache_dtype=FP8)
    notes = notes_for(
        "rtx-4090", "llama-3.1-8b", profile, step_times=step_times, kv_cache_dtype=FP8
    )
    assert sum("--kv-cache-dtype fp8" in note for note in notes) == 1


def test_a_reload_moves_half_the_bytes() -> None:
    plain, fp8 = (
        costs(profile_for("h100", "llama-3.1-8b", kv_cache_dtype=d), step_tokens=2048, offload=True)
        for d in KvCacheDtype
    )
    assert plain.reload_s
    assert fp8.reload_s
    # 65,536 bytes less per token over 0.8 × 63 GB/s
    saved_s = plain.reload_s(10_000) - fp8.reload_s(10_000)
    assert saved_s == pytest.approx(10_000 * 65_536 / 50.4e9, rel=1e-6)
    assert fp8.prefill_s(10_000) == plain.prefill_s(10_000)


def test_the_costs_of_a_live_policy_have_reloads_of_half_the_bytes() -> None:
    plain, fp8 = (
        costs_on(
            "llama-3.1-8b",
            "h100",
            gpus=1,
            step_tokens=2048,
            step_times=StepTimes.TABLES,
            kv_cache_dtype=dtype,
        )[0]
        for dtype in KvCacheDtype
    )
    assert plain.reload_s_per_token
    assert fp8.reload_s_per_token
    saved_s = plain.reload_s_per_token - fp8.reload_s_per_token
    assert saved_s == pytest.approx(65_536 / 50.4e9, rel=1e-6)


def test_a_checkpoint_with_fp8_kv_is_unchanged() -> None:
    declared = with_kv_cache(model("llama-3.1-8b"), FP8)
    assert with_kv_cache(declared, KvCacheDtype.AUTO) == with_kv_cache(declared, FP8) == declared


def test_a_model_that_leaves_room_for_half_the_kv_fits_on_one_gpu() -> None:
    llm, gpu = replace(model("llama-3.1-8b"), gpus=None), hardware("h100")
    whole = MemoryUse(utilization=1.0)
    left_bytes = 200 * 2**20  # 2,048 tokens take 256 MiB in 16 bits, and 128 MiB in FP8
    missing_bytes = left_bytes - kv_budget_bytes(gpu, llm, 1, whole)
    gpu = replace(gpu, memory_bytes=gpu.memory_bytes + missing_bytes)
    assert default_gpus(gpu, llm, whole) == 2
    assert default_gpus(gpu, with_kv_cache(llm, FP8), whole) == 1


def test_a_profile_file_must_have_been_measured_in_the_format(tmp_path: Path) -> None:
    sixteen, eight = tmp_path / "16.json", tmp_path / "8.json"
    sixteen.write_text(measured().model_dump_json(exclude={"kv_cache_dtype"}))
    eight.write_text(measured(kv_cache_dtype="fp8").model_dump_json())
    with pytest.raises(InvalidInput, match=r"^--kv-cache-dtype fp8: .*16\.json .* auto"):
        profile_for(str(sixteen), None, kv_cache_dtype=FP8)
    assert measured_for(str(eight), None, None, FP8) == measured_for(str(eight), None, None)


def steps(profile: Profile) -> dict[str, int]:
    return {name: value for name, value in asdict(profile).items() if name in STEPS}
