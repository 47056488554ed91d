"""Builds vLLM's scheduler and KV manager without a model, a GPU or a server.

In: a scheduler class and the sizes of a server. Out: the scheduler, as vLLM's engine core builds it
for the given groups of layers. Runs under vLLM's interpreter.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.structured_output import StructuredOutputManager

from servers.admission import Admission, Headroom
from servers.profiles.kv_memory import STATE_INSIDE, KvMemory, is_chunk, is_state
from servers.speculation import Speculation

MAX_MODEL_LEN = 1 << 24
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_MODEL_LEN,
    "vocab_size": 200000,
    "torch_dtype": "float16",
}
"""The scheduler only uses `max_position_embeddings`."""
NO_HEADROOM = Headroom()

LEGACY_HASHES = "disable_lookahead_block_hashes"
"""Option of vLLM 0.33, without which it hashes the token after a block too and computes no block of
a hit again for draft layers. Virtual time follows 0.32."""


@cache
def _config() -> tuple[VllmConfig, StructuredOutputManager]:
    with tempfile.TemporaryDirectory(prefix="turnstile-") as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        model = ModelConfig(
            model=folder, dtype="float16", skip_tokenizer_init=True, max_model_len=MAX_MODEL_LEN
        )
    scheduler = SchedulerConfig(
        max_num_seqs=16,
        max_num_batched_tokens=8192,
        max_model_len=MAX_MODEL_LEN,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=False,
    )
    cache_config = CacheConfig(block_size=16, enable_prefix_caching=True)
    config = VllmConfig(model_config=model, scheduler_config=scheduler, cache_config=cache_config)
    return config, StructuredOutputManager(config)


def headless_scheduler(
    scheduler: type[AsyncScheduler],
    memory: KvMemory,
    *,
    max_num_seqs: int,
    step_tokens: int,
    admission: Admission = Admission.WHOLE_PROMPT,
    headroom: Headroom = NO_HEADROOM,
    speculation: Speculation | None = None,
    max_model_len: int = MAX_MODEL_LEN,
    **kwargs: Any,
) -> Any:
    """Build a scheduler. `kwargs` are passed to its constructor in addition to vLLM's arguments.
    `max_model_len` limits the slots of drafts."""
    config, grammar = _config()
    config.model_config.max_model_len = max_model_len
    config.speculative_config = _speculative_config(config, speculation)
    limits = config.scheduler_config
    limits.max_num_seqs = max_num_seqs
    limits.max_num_batched_tokens = step_tokens
    limits.scheduler_reserve_full_isl = admission == Admission.WHOLE_PROMPT
    limits.long_prefill_token_threshold = headroom.long_prefill
    limits.long_prefill_token_threshold_adaptive = headroom.long_prefill_adaptive
    limits.watermark = headroom.watermark
    config.cache_config.block_size = memory.block_tokens
    config.cache_config.mamba_cache_mode = "align" if memory.keeps_states else "none"
    config.cache_config.num_gpu_blocks = blocks = memory.kv_blocks + 1  # one is vLLM's null block
    full, local = (memory.block_tokens * length for length in memory.block_lengths)
    groups = [
        KVCacheGroupSpec([f"layer {i}"], _spec(window, full if window is None else local))
        for i, window in enumerate(memory.kv_groups)
    ]
    kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    if len(groups) > 1 and hasattr(kv, "prefix_cache_retention_interval"):
        kv.prefix_cache_retention_interval = config.cache_config.prefix_cache_retention_interval
    return scheduler(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=grammar,
        block_size=max(full, local),
        hash_block_size=memory.block_tokens,
        log_stats=False,
        **kwargs,
    )


def _speculative_config(
    config: VllmConfig, speculation: Speculation | None
) -> SpeculativeConfig | None:
    """The scheduler reads only the method and the number of drafts, so that no draft model is
    needed. It treats eagle3 and MTP, with one draft module, as eagle."""
    if speculation is None:
        return None
    speculative = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=speculation.tokens,
        prompt_lookup_max=2,
        target_model_config=config.model_config,
        target_parallel_config=config.parallel_config,
    )
    if speculation.drops_block:
        speculative.method = "eagle"
        if hasattr(speculative, LEGACY_HASHES):
            setattr(speculative, LEGACY_HASHES, True)
    return speculative


def _spec(window: int | None, block_tokens: int) -> Any:
    if is_state(window):
        inside = window == STATE_INSIDE
        return MambaSpec(
            block_size=block_tokens,
            shapes=((1,),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
            num_prefill_checkpoint_blocks=int(inside),
            prefill_checkpoint_alignment=1 if inside else None,
        )
    sizes = {
        "block_size": block_tokens,
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": torch.float32,
    }
    if window is None:
        return FullAttentionSpec(**sizes)
    if is_chunk(window):
        return ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=-window)
    return SlidingWindowSpec(**sizes, sliding_window=window)


def sampling(output_tokens: int, **xargs: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=output_tokens, ignore_eos=True, temperature=0.0, extra_args=xargs or None
    )


def answer(scheduler: Any, output: SchedulerOutput, tokens: dict[str, list[int]]) -> Any:
    """Complete a step: update the scheduler with the sampled tokens, given by request id."""
    keys = list(output.num_scheduled_tokens)
    return scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=keys,
            req_id_to_index={key: i for i, key in enumerate(keys)},
            sampled_token_ids=[tokens.get(key, []) for key in keys],
        ),
    )
