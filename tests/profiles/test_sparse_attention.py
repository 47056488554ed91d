"""Sparse attention with an indexer: parameters, KV, blocks and step times, calculated by hand."""

from __future__ import annotations

from typing import Any

import pytest

from servers.basics.errors import DoesNotFit, InvalidInput
from servers.profiles import MODELS, analytic_profile, hardware, notes
from servers.profiles.kv_cache_dtype import KvCacheDtype, with_kv_cache
from servers.profiles.kv_groups import FULL_ATTENTION
from servers.profiles.models.config import model_of

V32, GLM_5, GLM_5_2 = (MODELS[name] for name in ("deepseek-v3.2", "glm-5.1-fp8", "glm-5.2-fp8"))
LATENT = 512 + 64


def of(**changes: Any) -> Any:
    return model_of({**GLM_5_2.config, **changes}, "a-model")


def test_an_indexer_has_queries_of_its_heads_and_one_key_per_token() -> None:
    dense = MODELS["deepseek-v3"]
    # 64 heads of 128 from 1,536 entries; a key of 128 and 64 weights from the hidden size; a norm
    indexer = 64 * 128 * 1536 + (128 + 64) * 7168 + 2 * 128
    assert V32.params - dense.params == 61 * indexer
    assert pytest.approx(671.9e9, rel=1e-3) == V32.params
    assert GLM_5.params == pytest.approx(744e9, rel=1e-3)  # "744B", as its model page says
    assert GLM_5.token_params == pytest.approx(40e9, rel=0.01)


def test_a_key_has_a_byte_per_dimension_and_a_scale_and_each_gpu_keeps_a_copy() -> None:
    assert V32.kv_bytes_per_token == 61 * (2 * LATENT + 128 + 4)
    assert V32.kv_bytes_per_token_on(8) == 8 * V32.kv_bytes_per_token


def test_layers_share_the_choice_of_the_last_layer_with_an_indexer() -> None:
    # the first 3 layers, and every 4th of the other 75 after them: 6, 10, … 74, and 78 is none
    assert [kind.layers for kind in GLM_5_2.kinds] == [21, 57]
    assert GLM_5_2.kv_bytes_per_token == 78 * 2 * LATENT + 21 * 132
    assert of(index_topk_pattern="FFSS").kinds[0].layers == 2 + 74


@pytest.mark.parametrize(
    ("gpu", "dtype", "entry_bytes"),
    [
        ("h200", KvCacheDtype.AUTO, 2 * LATENT),
        # 16 bytes of scales, and a rotary part of 16 bits
        ("h200", KvCacheDtype.FP8, 512 + 16 + 128),
        ("b200", KvCacheDtype.FP8, LATENT),
        ("rtx-pro-6000-server", KvCacheDtype.AUTO, 656),
    ],
)
def test_the_format_of_kv_follows_from_the_kernels_of_the_gpu(
    gpu: str, dtype: KvCacheDtype, entry_bytes: int
) -> None:
    assert with_kv_cache(V32, dtype, hardware(gpu)).kv_bytes_per_token == 61 * (entry_bytes + 132)


def test_glm_has_kv_in_8_bits_on_blackwell_without_being_asked() -> None:
    b200 = with_kv_cache(GLM_5, KvCacheDtype.AUTO, hardware("b200"))
    assert b200.kv_bytes_per_token == 78 * (LATENT + 132)


def test_all_layers_share_blocks_of_64_tokens_with_the_bytes_of_both_caches() -> None:
    profile = analytic_profile("h200", "deepseek-v3.2")
    assert (profile.kv_groups, profile.block_tokens) == (FULL_ATTENTION, 64)
    assert profile.kv_bytes_per_token == 8 * 78_324
    assert analytic_profile("h200", "deepseek-v3.2", block_tokens=80).block_tokens == 128


def test_attention_reads_the_chosen_tokens_and_the_indexer_all_keys() -> None:
    profile = analytic_profile("h200", "deepseek-v3.2")
    memory, bf16, fp8 = 0.75 * 4.8, 0.65 * 8 * 989.5, 0.65 * 1979  # TB/s and TFLOP/s
    assert profile.window is not None
    assert profile.window.tokens == 2048
    # a copy on each of 8 GPUs, each read by its own GPU
    assert profile.window.context_ps == round(61 * 2 * LATENT / memory)
    assert profile.context_ps == round(61 * 132 / memory)
    # queries of 128 heads are multiplied with latent vectors: 576 for the score, 512 for the value
    assert profile.window.pair_ps == round(2 * 61 * 128 * (LATENT + 512) / bf16)
    # and those of the indexer's 64 heads with keys, on each GPU
    assert profile.pair_ps == round(2 * 61 * 64 * 128 / fp8)


def test_a_note_states_what_is_assumed() -> None:
    assert (
        "a query attends to 2,048 tokens at most, which indexers in 21 of 78 layers choose; scores "
        "of prompts are computed at 65% of published FP8 FLOP/s, and the choice itself takes no "
        "time"
    ) in notes(analytic_profile("h200", "glm-5.2-fp8"))


@pytest.mark.parametrize("gpu", ["a100-80g", "l40s", "mi300x"])
def test_a_gpu_without_kernels_is_refused_with_those_that_have_some(gpu: str) -> None:
    with pytest.raises(DoesNotFit, match=f"{gpu}: the sparse attention of .* on h100, h200, b200"):
        analytic_profile(gpu, "deepseek-v3.2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_topk": None}, "lacks index_topk"),
        ({"index_topk_freq": 0}, "index_topk_freq is 0: must be a whole number from 1"),
        ({"index_topk_pattern": "SF"}, "pattern is 'SF': must be text of F .* with F first"),
        ({"index_topk_pattern": ["F"]}, "must be text of F"),
        ({"q_lora_rank": None}, "lacks q_lora_rank"),
    ],
)
def test_unusable_fields_of_an_indexer_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        of(**changes)
