"""Models that need no download: the contents of their folders, and their costs for policies."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servers.basics.errors import InvalidInput
from servers.policies.base import Costs
from servers.profiles import MODELS
from servers.profiles.cpu_time import StepTimes
from servers.profiles.files import profile_for
from servers.profiles.rebuild import decode_step_s
from servers.vllm.launch.command_line import ServerConfig, longest_context
from servers.vllm.launch.cost_curve import costs_on, fit, read_costs
from servers.vllm.launch.find_vllm import VllmInstallation
from servers.vllm.models.model_folder import CONFIGS, resolve_model
from servers.vllm.models.tiny_model import (
    TINY_CONFIG,
    byte_tokenizer,
    llama_weights,
    write_safetensors,
)


def parameters(config: dict[str, Any]) -> int:
    """Count the parameters: projections, norms, gates, experts, and input and output tables."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size, kv_heads = config.get("head_dim", hidden // heads), config["num_key_value_heads"]
    queries, keys = heads * size, 2 * kv_heads * size
    attention = hidden * (2 * queries + keys)
    norms = 2 * hidden
    if config["model_type"] == "gemma3_text":
        norms = 4 * hidden + 2 * size
    if config["model_type"] == "glm4_moe":
        attention += queries + keys
        norms += 2 * size
    dense = 3 * hidden * config["intermediate_size"]
    layers = config["num_hidden_layers"]
    dense_layers = config.get("first_k_dense_replace", layers)
    experts = 0
    if dense_layers < layers:
        routed, shared = config["n_routed_experts"], config["n_shared_experts"]
        expert = 3 * hidden * config["moe_intermediate_size"]
        experts = (routed + shared) * expert + routed * hidden + routed
    tables = 1 if config["tie_word_embeddings"] else 2
    return (
        layers * (attention + norms)
        + dense_layers * dense
        + (layers - dense_layers) * experts
        + tables * config["vocab_size"] * hidden
        + hidden
    )


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "glm-4.5-fp8"])
def test_a_config_has_as_many_parameters_as_its_profile(name: str) -> None:
    assert parameters(dict(CONFIGS[name])) == MODELS[name].params


def test_the_config_of_gemma_has_the_parameters_that_a_step_reads() -> None:
    assert parameters(dict(CONFIGS["gemma-3-12b"])) == MODELS["gemma-3-12b"].step_params


def test_every_model_with_a_profile_has_a_config() -> None:
    assert set(CONFIGS) == {"tiny", *MODELS}


def test_each_token_of_the_tokenizer_is_a_byte() -> None:
    vocabulary = byte_tokenizer()["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert (vocabulary["A"], vocabulary["~"]) == (0x41, 0x7E)
    # As GPT-2 writes them: a space is U+0120, a line feed U+010A.
    assert (vocabulary["\u0120"], vocabulary["\u010a"]) == (0x20, 0x0A)


def test_weights_are_written_as_safetensors_in_bfloat16(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "w", {"a": np.array([[1.0, -2.0]], np.float32)})
    written = (tmp_path / "w").read_bytes()
    length = int.from_bytes(written[:8], "little")
    header = json.loads(written[8 : 8 + length])
    assert header == {"a": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]}}
    # bfloat16: 1.0 is 0x3F80, -2.0 is 0xC000, low byte first.
    assert written[8 + length :] == b"\x80\x3f\x00\xc0"


def test_random_weights_match_the_config_and_are_reproducible() -> None:
    weights = llama_weights(TINY_CONFIG, np.random.default_rng(0))
    assert sum(prod(w.shape) for w in weights.values()) == parameters(dict(TINY_CONFIG))
    again = llama_weights(TINY_CONFIG, np.random.default_rng(0))
    assert all((weights[name] == again[name]).all() for name in weights)


def test_a_named_model_is_written_once_with_weights_if_requested(tmp_path: Path) -> None:
    random, dummy = resolve_model("tiny", cache=tmp_path), resolve_model("tiny", "dummy", tmp_path)
    assert (Path(random.path) / "model.safetensors").exists()
    assert not (Path(dummy.path) / "model.safetensors").exists()
    assert dummy.flags[-1] == "dummy"
    assert resolve_model("tiny", "random", tmp_path) == random
    assert len(list(tmp_path.iterdir())) == 2
    assert resolve_model("llama-3.1-8b", cache=tmp_path).flags[-1] == "dummy"


def test_a_folder_is_loaded_unchanged_and_a_hugging_face_name_is_passed_to_vllm(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 4096}')
    folder = resolve_model(str(tmp_path))
    assert (folder.path, folder.flags, folder.max_context) == (str(tmp_path), (), 4096)
    assert resolve_model("org/model").path == "org/model"


@pytest.mark.parametrize("name", MODELS)
def test_every_listed_model_has_a_folder_with_its_longest_context(
    name: str, tmp_path: Path
) -> None:
    found = resolve_model(name, cache=tmp_path)
    limits = json.loads((Path(found.path) / "tokenizer_config.json").read_bytes())
    assert found.max_context == limits["model_max_length"]
    assert found.max_context


def test_the_context_follows_from_kv_blocks_unless_layers_keep_states(tmp_path: Path) -> None:
    vllm = VllmInstallation("python", "0.32.0", cpu=False, torch=None, has_request_metrics=True)
    config = ServerConfig(kv_blocks=101)
    found = {}
    for name in ("llama", "nemotron_h", "kimi_linear"):
        fields = {"model_type": name, "max_position_embeddings": 4096}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        found[name] = longest_context(config, vllm, resolve_model(str(tmp_path)))
    assert found == {"llama": 100 * 16, "nemotron_h": None, "kimi_linear": None}
    listed = resolve_model("qwen3.5-27b", cache=tmp_path)
    assert longest_context(config, vllm, listed) is None
    assert longest_context(replace(config, max_model_len=70), vllm, listed) == 70


def test_a_quadratic_is_fitted_to_the_costs_of_a_profile() -> None:
    exact = Costs(prefill_s=lambda n: 0.5 + 2e-4 * n + 3e-9 * n * n, step_tokens=512)
    curve = fit(exact, 100_000)
    assert curve.base_s == pytest.approx(0.5)
    assert curve.linear_s == pytest.approx(2e-4)
    assert curve.quadratic_s == pytest.approx(3e-9)
    assert (curve.step_tokens, curve.reload_s_per_token) == (512, None)


def test_decode_steps_are_fitted_to_the_batches_that_fit_in_the_kv_memory() -> None:
    def step_s(turns: int, context_tokens: int) -> float:
        assert context_tokens <= 50_000
        return 0.01 + turns * 2e-4 + context_tokens * 1e-7

    curve = fit(Costs(float, kv_tokens=50_000, decode_step_s=step_s), 100_000)
    fitted = curve.decode_step
    assert fitted is not None
    assert fitted.base_s == pytest.approx(0.01)
    assert fitted.turn_s == pytest.approx(2e-4)
    assert fitted.context_token_s == pytest.approx(1e-7)
    assert fit(Costs(float), 100_000).decode_step is None


def test_the_fitted_decode_steps_of_an_a100_are_those_of_its_profile_within_a_few_percent() -> None:
    profile = profile_for("a100-80g", "llama-3.1-8b", step_times=StepTimes.TABLES)
    curve, _ = costs_on(
        "llama-3.1-8b", "a100-80g", gpus=1, step_tokens=2048, step_times=StepTimes.TABLES
    )
    decode = curve.decode_step
    assert decode is not None
    for turns, context in ((1, 2_000), (8, 16_000), (32, 4_000), (128, 1_000)):
        fitted_s = decode.base_s + decode.turn_s * turns + decode.context_token_s * turns * context
        assert fitted_s == pytest.approx(decode_step_s(profile, turns, turns * context), rel=0.1)


def test_a_faster_machine_has_lower_costs() -> None:
    def seconds(hardware: str) -> float:
        curve, _ = costs_on(
            "llama-3.1-8b",
            hardware,
            gpus=1,
            step_tokens=2048,
            step_times=StepTimes.ANALYTIC,
        )
        return curve.base_s + 10_000 * curve.linear_s + 10_000**2 * curve.quadratic_s

    # 10,000 tokens x 2 FLOP x 6.98e9 at 0.65 x 312 TFLOP/s take 0.69 s, attention 0.13 s.
    assert seconds("a100-80g") == pytest.approx(0.82, rel=0.1)
    assert seconds("b200") < seconds("h100") < seconds("a100-80g")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"base_s": -1, "linear_s": 0, "quadratic_s": 0}', "base_s is -1: expected float >= 0.0"),
        ('{"base_s": 1, "linear_s": 0}', "lacks quadratic_s"),
        ('{"base_s": 1, "linear_s": 0, "quadratic_s": 0, "lin": 1}', "'lin' is not a field of th"),
        (
            '{"base_s": 1, "linear_s": 0, "quadratic_s": 0, "decode_step": {"base_s": "x"}}',
            "decode_step.base_s is 'x': expected float",
        ),
        ('{"base_s": NaN, "linear_s": 0, "quadratic_s": 0}', "not a JSON object"),
    ],
)
def test_an_invalid_cost_file_is_reported_by_field(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InvalidInput, match=f"c.json: {message}"):
        read_costs(tmp_path / "c.json")
