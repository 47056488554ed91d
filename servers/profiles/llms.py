"""Shapes and sizes of models for analytic profiles, from their config.json.

Parameters are counts; weights and KV are bytes. KV entries have 16 bits for all models, including
FP8 checkpoints, as is vLLM's default.
"""

from __future__ import annotations

from dataclasses import dataclass

from servers.profiles.profile import find

KV_ENTRY_BYTES = 2
AGENT_CONTEXT_TOKENS = 16_384
"""Context length for which the cost of sliding-window layers is computed; about the final context
of an agent's program."""


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    params: int
    """All parameters that are loaded."""
    step_params: int
    """Parameters that a step reads: all but a separate input embedding and a vision tower."""
    token_params: int
    """Parameters that are multiplied with one prompt token: without input embedding and output
    head, and of the experts only those to which the token is routed."""
    weight_bytes_per_param: int
    max_model_len: int
    gpus: int
    """Default tensor parallel size."""
    source: str
    prefill_mfu: float = 0.5
    """Assumed share of the tensor peak that the matrix products of a prompt reach."""
    local_layers: int = 0
    """Number of sliding-window layers, which attend to the last `window` tokens only."""
    window: int = 0
    note: str = ""

    @property
    def weight_bytes(self) -> int:
        return self.params * self.weight_bytes_per_param

    @property
    def kv_bytes_per_token(self) -> int:
        """2 (K and V) × layers × KV heads × head size × 2 bytes. Local layers hold only `window` of
        AGENT_CONTEXT_TOKENS tokens and are weighted by that ratio."""
        per_layer = 2 * self.kv_heads * self.head_dim * KV_ENTRY_BYTES
        local = self.local_layers * self.window * per_layer // AGENT_CONTEXT_TOKENS
        return (self.layers - self.local_layers) * per_layer + local

    @property
    def flops_per_pair(self) -> int:
        """FLOPs per query-key pair: 4 (two products, multiply and add) × heads × head size ×
        layers. Of the C²/2 pairs of a prompt, a local layer computes window × C, a ratio of
        2 × window / C."""
        local = 2 * self.local_layers * self.window // AGENT_CONTEXT_TOKENS
        return 4 * self.heads * self.head_dim * (self.layers - self.local_layers + local)


MODELS = {
    llm.name: llm
    for llm in (
        Model(
            "llama-3.1-8b",
            layers=32,
            hidden=4096,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocab=128_256,
            params=8_030_261_248,
            step_params=7_504_924_672,
            token_params=6_979_588_096,
            weight_bytes_per_param=2,
            max_model_len=131_072,
            gpus=1,
            source="meta-llama/Llama-3.1-8B-Instruct config.json",
        ),
        Model(
            "llama-3.1-70b",
            layers=80,
            hidden=8192,
            heads=64,
            kv_heads=8,
            head_dim=128,
            vocab=128_256,
            params=70_553_706_496,
            step_params=69_503_033_344,
            token_params=68_452_360_192,
            weight_bytes_per_param=2,
            max_model_len=131_072,
            gpus=4,
            source="meta-llama/Llama-3.1-70B-Instruct config.json",
        ),
        Model(
            "gemma-3-12b",
            layers=48,
            hidden=3840,
            heads=16,
            kv_heads=8,
            head_dim=256,
            vocab=262_208,
            params=12_187_325_040,
            step_params=11_766_034_176,
            token_params=10_759_155_456,
            weight_bytes_per_param=2,
            max_model_len=131_072,
            gpus=1,
            source="google/gemma-3-12b-it config.json",
            local_layers=40,
            window=1024,
            note="gemma-3-12b keeps only the last 1024 tokens in 40 of its 48 layers: KV counts as "
            f"at a context of {AGENT_CONTEXT_TOKENS} tokens, too little for shorter and too much "
            "for longer ones",
        ),
        Model(
            "glm-4.5-fp8",
            layers=92,
            hidden=5120,
            heads=96,
            kv_heads=8,
            head_dim=128,
            vocab=151_552,
            params=352_797_829_024,
            step_params=352_021_882_784,
            token_params=32_080_373_664,
            weight_bytes_per_param=1,
            max_model_len=131_072,
            gpus=8,
            source="zai-org/GLM-4.5-FP8 config.json, without the multi-token-prediction layer",
            prefill_mfu=0.3,
            note="glm-4.5-fp8 is timed as if every step read all experts: too slow for decode "
            "batches under about 50 tokens, which touch only some of them",
        ),
    )
}


def model(name: str) -> Model:
    return find("model", MODELS, name)
