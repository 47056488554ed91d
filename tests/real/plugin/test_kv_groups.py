"""The KV groups and the KV memory in tokens of listed models equal vLLM's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, SlidingWindowSpec

from servers.profiles import model
from servers.profiles.kv_groups import groups_of
from servers.profiles.kv_memory import KvMemory
from tests.sim.worlds import BLOCK

SPLIT = getattr(kv_cache_utils, "_get_kv_cache_groups_uniform_page_size", None)
PATTERNS = {
    "gpt-oss-20b": [True, False] * 12,
    "gpt-oss-120b": [True, False] * 18,
    "gemma-3-12b": ([True] * 5 + [False]) * 8,
    "gemma-3-27b": ([True] * 5 + [False]) * 10 + [True] * 2,
}
"""Whether each layer has a window, from the models' config.json."""


@pytest.mark.skipif(SPLIT is None, reason="this vLLM splits layers in another function")
@pytest.mark.parametrize("name", PATTERNS)
def test_groups_and_kv_tokens_equal_vllm(name: str) -> None:
    window = next(kind.window for kind in model(name).kinds if kind.window)
    sizes = {"block_size": BLOCK, "num_kv_heads": 8, "head_size": 64, "dtype": torch.bfloat16}
    specs = {
        f"layers.{i}": SlidingWindowSpec(**sizes, sliding_window=window)
        if is_local
        else FullAttentionSpec(**sizes)
        for i, is_local in enumerate(PATTERNS[name])
    }
    theirs = SPLIT(specs)
    groups, layers = groups_of(model(name))
    windows = [getattr(group.kv_cache_spec, "sliding_window", None) for group in theirs]
    assert list(groups) == windows
    assert layers == max(len(group.layer_names) for group in theirs)
    pool = KVCacheConfig(num_blocks=30_000, kv_cache_tensors=[], kv_cache_groups=theirs)
    for step_tokens in (2048, 8192):
        for longest in (2000, 40_000, 131_072):
            config = SimpleNamespace(
                max_in_flight_tokens=2 * step_tokens,
                model_config=SimpleNamespace(max_model_len=longest),
                parallel_config=SimpleNamespace(decode_context_parallel_size=1),
            )
            turns = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, pool)
            ours = KvMemory(30_000, BLOCK, kv_groups=groups)
            assert ours.kv_tokens(step_tokens, longest) == int(turns * longest)
