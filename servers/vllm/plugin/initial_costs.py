"""The costs of prefills and decode steps before any step was measured.

In: vLLM's configuration. Out: `Costs` from the number of parameters and the bytes of KV per token.
They assume half of the BF16 peak of an A100 and three quarters of its memory bandwidth per GPU (on
a CPU, two cores), and a dense or mixture-of-experts transformer with full or latent attention, so
they may be wrong by a factor of three or more. Times in seconds, sizes in bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from servers.policies.base import Costs
from servers.vllm.plugin.cost_curve import CostCurve, DecodeStep


class AssumedMachine(NamedTuple):
    flops: float
    bytes_per_s: float


GPU = AssumedMachine(156e12, 1.5e12)
CPU = AssumedMachine(1e11, 1e10)
STEP_S = 0.005
"""Time of a step that computes nothing."""


class ModelSizes(NamedTuple):
    parameters: int
    """All weights, which a step reads."""
    active_parameters: int
    """Weights that a token is multiplied with: those of its experts only."""
    attention: int
    """Layers × heads × size of a head: 4 of these FLOP for each pair of tokens."""
    kv_values: int
    """Keys and values of a token."""


def initial_costs(vllm_config: Any) -> Costs:
    model = _model(vllm_config.model_config)
    machine = CPU if vllm_config.device_config.device_type == "cpu" else GPU
    parallel = vllm_config.parallel_config
    # In a pipeline a stage ends a step in this time; the next chunk of a prompt follows it.
    gpus = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    flops: float = machine.flops * gpus
    bytes_per_s: float = machine.bytes_per_s * gpus
    quantized = vllm_config.model_config.quantization is not None
    weights_s: float = model.parameters * (1 if quantized else 2) / bytes_per_s
    fp8 = str(vllm_config.cache_config.cache_dtype).startswith("fp8")
    context_token_s = model.kv_values * (1 if fp8 else 2) / bytes_per_s
    limits = vllm_config.scheduler_config
    most_tokens = limits.max_num_batched_tokens
    if scheduled := getattr(limits, "max_num_scheduled_tokens", None):
        most_tokens = min(most_tokens, scheduled)
    token_s = 2 * model.active_parameters / flops
    return CostCurve(
        base_s=STEP_S,
        linear_s=token_s,
        # Each of n tokens attends to half of the others on average.
        quadratic_s=2 * model.attention / flops,
        step_tokens=int(most_tokens),
        decode_step=DecodeStep(
            base_s=STEP_S + weights_s, turn_s=token_s, context_token_s=context_token_s
        ),
    ).costs()


def _model(config: Any) -> ModelSizes:
    text = config.hf_text_config
    hidden, layers, heads = (
        _first(text, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    kv_heads = _first(text, "num_key_value_heads", "num_attention_heads")
    head = config.get_head_size()
    kv_values = 2 * layers * kv_heads * head
    if config.use_mla:  # of each token one vector, from which all heads compute keys and values
        kv_heads, head, kv_values = 1, _first(text, "v_head_dim", "head_dim"), layers * head
    experts = _first(text, "num_experts", "n_routed_experts", "num_local_experts")
    active = _first(text, "num_experts_per_tok") if experts > 1 else 1
    wide = _first(text, *(["moe_intermediate_size"] if experts > 1 else []), "intermediate_size")
    attention = 2 * hidden * head * (heads + kv_heads)
    expert = 3 * hidden * wide
    output = hidden * _first(text, "vocab_size")
    return ModelSizes(
        parameters=layers * (attention + experts * expert) + output,
        active_parameters=layers * (attention + active * expert) + output,
        attention=layers * heads * head,
        kv_values=kv_values,
    )


def _first(config: Any, *names: str) -> int:
    """Return the first of these fields that is there, and of a list with a value for each layer or
    modality the largest; 1 if none is there."""
    value = next((value for name in names if (value := getattr(config, name, None))), 1)
    return int(max(value) if isinstance(value, list | tuple) else value)
