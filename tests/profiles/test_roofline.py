"""Analytic profiles: manually calculated coefficients, and comparisons with published numbers."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from servers.basics.errors import DoesNotFit
from servers.profiles import HARDWARE, MODELS, analytic_profile, model, notes
from tests.sentences import mentions

PER_MS = 1_000_000_000
ZERO = {
    *("sequence_ps", "request_ps", "load_ps", "load_token_ps"),
    *("decode_ps", "prefill_ps", "mean_context_ps"),
}
"""Coefficients that analytic profiles without a tier leave at zero."""


def test_llama_8b_on_one_a100_matches_a_manual_calculation() -> None:
    profile = analytic_profile("a100-80g", "llama-3.1-8b")
    assert profile.provenance == "analytic"
    # 7.505e9 parameters × 2 bytes at 0.75 × 2039 GB/s
    assert profile.weights_ps / PER_MS == pytest.approx(9.8152, abs=1e-3)
    # 2 × 6.980e9 FLOP at 0.65 × 312 TFLOP/s
    assert profile.token_ps == pytest.approx(68_832_230, abs=10)
    # 131,072 bytes at 1529.25 GB/s; 524,288 FLOP at 202.8 TFLOP/s
    assert (profile.context_ps, profile.pair_ps) == (85_710, 2_585)
    # CPU time between the steps of an asynchronous scheduler
    assert profile.base_ps == 200_000_000
    # 16 lanes of PCIe 4 at 80%
    assert profile.dram_bytes_per_s == pytest.approx(25.2e9)


def test_four_gpus_read_a_quarter_each_and_pay_for_all_reduces() -> None:
    profile = analytic_profile("b200", "llama-3.1-70b")
    # 69.503e9 × 2 bytes at 4 × 0.75 × 8 TB/s
    assert profile.weights_ps / PER_MS == pytest.approx(5.792, abs=1e-3)
    # 2 × 68.452e9 FLOP at 4 × 0.65 × 2250 TFLOP/s = 23.402 µs, and 2 × 80 all-reduces of 8192 × 2
    # bytes, 1.5 times of which crosses a link of 0.8 × 900 GB/s = 5.461 µs
    assert profile.token_ps == pytest.approx(28_863_000, rel=1e-4)
    # 160 all-reduces of 10 µs on top of the CPU's 0.2 ms
    assert profile.base_ps == 1_800_000_000
    # each GPU has a separate PCIe link: 4 × 0.8 × 63 GB/s
    assert profile.dram_bytes_per_s == pytest.approx(201.6e9)


def test_fp8_weights_are_multiplied_in_bf16_without_fp8_tensor_cores() -> None:
    a100 = analytic_profile("a100-80g", "glm-4.5-fp8")
    h100 = analytic_profile("h100", "glm-4.5-fp8")
    # without all-reduces (3.30 MB per token): 8 × 0.3 × 312 and × 1979 TFLOP/s
    assert a100.token_ps - 3_297_280 / 240e9 * 1e12 == pytest.approx(85_684_000, rel=1e-4)
    assert h100.token_ps - 3_297_280 / 360e9 * 1e12 == pytest.approx(13_508_000, rel=1e-4)


def test_a_small_step_reads_only_the_experts_that_its_tokens_take() -> None:
    """GLM-4.5-FP8: 8 of 160 experts per token. Eight H100 read 0.75 x 8 x 3.35 TB/s."""
    llm, profile = model("glm-4.5-fp8"), analytic_profile("h100", "glm-4.5-fp8")
    ms = {tokens: profile.step_ps(tokens, 0, 0, 0) / PER_MS for tokens in (1, 2, 64, 100_000)}
    base_ms = profile.base_ps / PER_MS
    every, one = llm.step_bytes() / 20.1e9, llm.step_bytes(1) / 20.1e9
    assert ms[1] == pytest.approx(base_ms + one, rel=1e-6)
    experts = (every - one) / 0.95  # one token takes 0.05 of them
    assert ms[2] == pytest.approx(base_ms + one + (0.0975 - 0.05) * experts, rel=1e-6)
    assert ms[64] == pytest.approx(base_ms + every - 0.95**64 * experts, rel=1e-6)
    assert ms[100_000] == pytest.approx(base_ms + 100_000 * profile.token_ps / PER_MS, rel=1e-6)


def test_a_step_takes_as_long_as_the_next_size_that_has_a_cuda_graph() -> None:
    """vLLM captures 1, 2, 4, then every 8th size to 256 and every 16th to 512, but at most twice
    `--max-num-seqs`."""
    profile = analytic_profile("h100", "qwen3-coder-30b-a3b")
    sizes = {1: 1, 3: 4, 5: 8, 9: 16, 250: 256, 257: 272, 500: 512, 513: 513}
    assert {n: profile.padded(n) for n in sizes} == sizes
    assert profile.tokens_ps(9) == profile.tokens_ps(16) > profile.tokens_ps(8)
    few = analytic_profile("h100", "qwen3-coder-30b-a3b", max_num_seqs=10)
    assert (few.padded(9), few.padded(17), few.padded(30)) == (16, 17, 30)


@pytest.mark.parametrize(
    ("machine", "batch_1_ms"),
    [
        # vLLM 0.23, BF16, one request in flight: 75 tokens/s
        ("a100-40g", 1000 / 75),
        # vLLM 0.21, 16 bit, one request in flight: 6.48 ms per output token
        ("h100", 6.48),
    ],
)
def test_decode_of_one_request_is_within_10_percent_of_published_runs(
    machine: str, batch_1_ms: float
) -> None:
    profile = analytic_profile(machine, "llama-3.1-8b")
    context = 1088 * profile.context_ps
    step_ps = profile.base_ps + max(profile.weights_ps, profile.token_ps) + context
    assert step_ps / PER_MS == pytest.approx(batch_1_ms, rel=0.1)


def test_the_default_context_length_is_limited_by_the_kv_memory() -> None:
    profile = analytic_profile("rtx-5090", "llama-3.1-8b", kv_blocks=5402)
    assert profile.max_model_len == 5402 * 16
    assert mentions(notes(profile), "max_model_len is 86432", "131072")


def test_an_explicit_context_length_is_kept() -> None:
    profile = analytic_profile("rtx-5090", "llama-3.1-8b", kv_blocks=5402, max_model_len=4096)
    assert (profile.kv_blocks, profile.max_model_len) == (5402, 4096)


def test_a_context_length_that_does_not_fit_is_refused_with_one_that_fits() -> None:
    with pytest.raises(DoesNotFit, match=r"-model-len 131072: .* 1600 tok.* more --kv-blocks$"):
        analytic_profile("a100-80g", "llama-3.1-8b", max_model_len=131_072, kv_blocks=100)
    with pytest.raises(DoesNotFit, match=r"--max-model-len 40960: .* or more --gpus$"):
        analytic_profile("a100-40g", "qwen3-32b", max_model_len=40_960)


@pytest.mark.parametrize(
    ("machine", "llm", "gpus", "remedy"),
    [
        ("l40s", "llama-3.1-70b", 1, "use --gpus 4"),
        ("a100-40g", "llama-3.1-70b", None, "use --gpus 8, or at most --max-num-seqs 16"),
        ("l40s", "glm-4.5-fp8", None, " others (bench list hardware)"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_the_remedy(
    machine: str, llm: str, gpus: int | None, remedy: str
) -> None:
    with pytest.raises(DoesNotFit) as caught:
        analytic_profile(machine, llm, gpus=gpus)
    assert str(caught.value).endswith(remedy)
    assert "\n" not in str(caught.value)


def test_what_is_named_as_remedy_fits() -> None:
    assert analytic_profile("l40s", "llama-3.1-70b", gpus=4).max_model_len > 2048
    assert analytic_profile("a100-40g", "llama-3.1-70b", max_num_seqs=16).max_model_len > 2048


def test_a_step_whose_tokens_leave_no_memory_is_refused_with_fewer() -> None:
    """The results of a layer's matrices for a million tokens are 100 GiB, and half of them 50,
    which 71 GiB hold with 15 GiB of weights."""
    with pytest.raises(DoesNotFit, match=r"--gpus 2, or at most --step-tokens 500000$"):
        analytic_profile("a100-80g", "llama-3.1-8b", step_tokens=1_000_000)


@pytest.mark.parametrize(
    "bad",
    [
        {"gpus": 0},
        {"gpus": 3},
        {"max_model_len": 0},
        {"max_model_len": 200_000},
        {"kv_blocks": 0},
        {"block_tokens": -16},
        {"gpu_memory_utilization": 1.5},
    ],
    ids=str,
)
def test_invalid_sizes_are_refused_by_name(bad: dict[str, int]) -> None:
    (name,) = bad
    option = f"(--)?{name.replace('_', '[-_]')}"
    with pytest.raises(ValueError, match=f"^{option} .*(use|takes|must be)"):
        analytic_profile("h100", "llama-3.1-8b", **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", HARDWARE)
@pytest.mark.parametrize("llm", MODELS)
def test_every_pair_that_fits_has_whole_positive_coefficients(machine: str, llm: str) -> None:
    try:
        profile = analytic_profile(machine, llm)
    except DoesNotFit:
        return
    for name, value in asdict(profile).items():
        if name.endswith(("_ps", "_blocks", "_len", "per_token")):
            assert isinstance(value, int), name
            assert value > 0 or name in ZERO
    longest_block = max(profile.block_lengths) * profile.block_tokens
    assert profile.max_model_len <= profile.kv_blocks * longest_block


def test_notes_state_that_nothing_was_measured() -> None:
    assert "nothing measured" in notes(analytic_profile("h100", "gemma-3-12b"))[0]


def test_profiles_load_without_numpy_and_pandas() -> None:
    code = "import sys, json, servers.profiles; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", code]))
    assert not {"numpy", "pandas"} & set(loaded)
