"""Computes the layers of a config that keep a state of constant size instead of KV: gated delta
nets (Qwen3-Next, Qwen3.5), Kimi delta attention (Kimi Linear) and Mamba 2 (Nemotron-H, Granite 4).

Sizes are as in vLLM 0.32 (`MambaStateShapeCalculator`), and FLOPs as in the kernels that
compute a prompt in chunks, with every product of a chunk counted in full.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from servers.basics.nearest import did_you_mean
from servers.profiles.models.fields import MOST_LAYERS, Fields
from servers.profiles.models.layer import Layer, Matrix
from servers.profiles.models.shape import StateLayers

Kind = Literal["attention", "state", "dense", "experts"]
"""What a layer has. Where each layer also has an MLP, only the first two are used."""
LETTERS: Final[dict[str, Kind]] = {"M": "state", "*": "attention", "-": "dense", "E": "experts"}
NAMES: Final[dict[str, Kind]] = {
    "full_attention": "attention",
    "attention": "attention",
    "linear_attention": "state",
    "mamba": "state",
    "mlp": "dense",
    "moe": "experts",
}
STATE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
NAMES_OF_GRANITE: Final = {
    "mamba_num_heads": "mamba_n_heads",
    "mamba_head_dim": "mamba_d_head",
    "n_groups": "mamba_n_groups",
    "ssm_state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "chunk_size": "mamba_chunk_size",
}
"""Granite's names of Nemotron-H's fields."""
SIXTEEN_BITS: Final = 2
DELTA_CHUNK = 64
"""Tokens that the kernels of delta nets compute together."""
DELTA_TOKEN_S = 65e-9
"""Measured, since these chunks are computed one after the other: 52 to 69 ns with 32 to 64 heads of
Qwen3.5 and 66 to 88 ns with 24 of Kimi K3, for prompts of 2,048 to 32,768 tokens on H200 and B200
(`aiconfigurator-core` 0.12, vLLM 0.24)."""
LATENT_BLOCK = 128
"""With latent attention beside states, blocks have a multiple of this number of tokens."""


class Stateful(NamedTuple):
    """The layers of a config, by number, and those that keep a state."""

    kinds: list[Kind]
    layer: Layer
    states: StateLayers


def layer_kinds(fields: Fields, architecture: str) -> list[Kind]:
    """Return what each layer has. Raises InvalidInput."""
    if architecture == "kimi_linear":
        return _kimi_kinds(fields)
    known, listed = LETTERS, fields.get(name := "hybrid_override_pattern")
    if not isinstance(listed, str):
        known, name = NAMES, "layer_types"
        if fields.get(name) is None and fields.get("layers_block_type") is not None:
            name = "layers_block_type"
        listed = fields.get(name)
        if listed is None and architecture.startswith("qwen"):
            every = fields.count(name := "full_attention_interval", default=4)
            layers = fields.count("num_hidden_layers", most=MOST_LAYERS)
            listed = [
                "linear_attention" if (layer + 1) % every else "full_attention"
                for layer in range(layers)
            ]
        if not isinstance(listed, list):
            raise fields.problem(name, listed, "must be a list of kinds of layers")
    if len(listed) > MOST_LAYERS:
        raise fields.problem(name, listed, f"must have at most {MOST_LAYERS} layers")
    kinds = [_kind(fields, name, known, each) for each in listed]
    layers = fields.count("num_hidden_layers", default=len(kinds), most=MOST_LAYERS)
    if len(kinds) != layers:
        raise fields.problem("num_hidden_layers", layers, f"{name} has {len(kinds)} layers")
    needed = {"attention": "full attention", "state": "a state"}
    if architecture == "granitemoehybrid":
        del needed["state"]  # vLLM has the KV of full attention for such a model.
    for kind, what in needed.items():
        if kind not in kinds:
            raise fields.problem(
                name, fields.get(name), f"gives no layer {what}; vLLM has other KV groups for such "
                "a model, which are not supported"
            )  # fmt: skip
    return kinds


def _kimi_kinds(fields: Fields) -> list[Kind]:
    """Return what each layer of Kimi Linear has, whose config counts layers from 1."""
    layers = fields.count("num_hidden_layers", most=MOST_LAYERS)
    names, section = ("kda_layers", "full_attn_layers"), fields.inner("linear_attn_config")
    kda, full = (section.get(name) for name in names)
    if not (isinstance(kda, list) and isinstance(full, list) and kda and full):
        raise fields.problem(
            "linear_attn_config", kda, f"must list layers in {' and '.join(names)}"
        )
    if sorted([*kda, *full], key=str) != sorted(range(1, layers + 1), key=str):
        raise fields.problem(
            "linear_attn_config", kda, f"{' and '.join(names)} must together have 1 to {layers}"
        )
    return ["state" if layer in kda else "attention" for layer in range(1, layers + 1)]


def _kind(fields: Fields, name: str, known: dict[str, Kind], value: object) -> Kind:
    if isinstance(value, str) and value in known:
        return known[value]
    hint = did_you_mean(str(value), known)
    raise fields.problem(name, value, f"not supported{hint} (known: {', '.join(known)})")


def stateful(fields: Fields, architecture: str) -> Stateful | None:
    """Return None if no layer keeps a state. Raises InvalidInput."""
    kinds = layer_kinds(fields, architecture)
    if "state" not in kinds:
        return None
    first = next(kind for kind in kinds if kind in ("state", "attention")) == "state"
    shared: dict[str, Any] = {
        "layers": kinds.count("state"), "first": first, "tap_bytes": SIXTEEN_BITS,
    }  # fmt: skip
    if architecture.startswith("qwen"):
        return Stateful(kinds, *_gated_delta(fields, architecture, shared))
    if architecture == "kimi_linear":
        return Stateful(kinds, *_kimi_delta(fields, shared))
    return Stateful(kinds, *_mamba2(fields, architecture, shared))


def _gated_delta(
    fields: Fields, architecture: str, shared: dict[str, Any]
) -> tuple[Layer, StateLayers]:
    """Gated delta nets (arXiv:2412.06464)."""
    hidden = fields.count("hidden_size")
    heads, key_heads = fields.count("linear_num_value_heads"), fields.count("linear_num_key_heads")
    rows, columns = fields.count("linear_value_head_dim"), fields.count("linear_key_head_dim")
    kernel = fields.count("linear_conv_kernel_dim", least=2)
    keys, values = key_heads * columns, heads * rows
    channels = 2 * keys + values
    if architecture == "qwen3_next":
        inputs = {"in_proj_qkvz": channels + values, "in_proj_ba": 2 * heads}
    else:
        inputs = {
            "in_proj_qkv": channels, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads,
        }  # fmt: skip
    matrices = [Matrix(f"linear_attn.{name}", hidden, size) for name, size in inputs.items()]
    matrices.append(Matrix("linear_attn.out_proj", values, hidden))
    # The convolution, a bias of each head's decay, and a norm; the decays have 32 bits.
    layer = Layer(matrices, channels * kernel + heads + rows, wide=heads)
    states = StateLayers(
        channels=channels,
        taps=kernel - 1,
        heads=heads,
        key_heads=key_heads,
        rows=rows,
        columns=columns,
        matrix_bytes=SIXTEEN_BITS
        if architecture == "qwen3_next"  # vLLM reads no other size for it.
        else _matrix_bytes(fields, "mamba_ssm_dtype", "bfloat16"),
        flops=_delta_flops(heads, rows, columns),
        token_s=DELTA_TOKEN_S,
        **shared,
    )
    return layer, states


def _kimi_delta(fields: Fields, shared: dict[str, Any]) -> tuple[Layer, StateLayers]:
    """Kimi delta attention (arXiv:2510.26692). Two small matrices, whose first part each GPU has,
    make the decays and the gate. vLLM keeps the convolution in 32 bits."""
    section = Fields(fields.inner("linear_attn_config"), fields.where)
    if section.flag("use_full_rank_gate"):
        raise section.problem(
            "linear_attn_config.use_full_rank_gate", True, "such layers, of Kimi K3, are not "
            "supported"
        )  # fmt: skip
    hidden, heads = fields.count("hidden_size"), section.count("num_heads")
    size, kernel = section.count("head_dim"), section.count("short_conv_kernel_size", least=2)
    inner = heads * size
    sizes = {"q_proj": inner, "k_proj": inner, "v_proj": inner, "b_proj": heads}
    matrices = [Matrix(f"self_attn.{name}", hidden, each) for name, each in sizes.items()]
    for name in ("f", "g"):
        matrices.append(Matrix(f"self_attn.{name}_a_proj", hidden, size, on_every_gpu=True))
        matrices.append(Matrix(f"self_attn.{name}_b_proj", size, inner))
    matrices.append(Matrix("self_attn.o_proj", inner, hidden))
    states = StateLayers(
        channels=3 * inner,
        taps=kernel - 1,
        heads=heads,
        rows=size,
        columns=size,
        matrix_bytes=STATE_BYTES["float32"],
        flops=_delta_flops(heads, size, size),
        token_s=DELTA_TOKEN_S,
        block_tokens=LATENT_BLOCK,
        **shared,
    )
    return Layer(matrices, size, wide=3 * inner * kernel + inner + heads), states


def _delta_flops(heads: int, rows: int, columns: int) -> int:
    return heads * (6 * rows * columns + DELTA_CHUNK * (6 * columns + 4 * rows))


def _matrix_bytes(fields: Fields, name: str, default: str) -> int:
    value = default if fields.get(name) is None else fields.get(name)
    if not isinstance(value, str) or value not in STATE_BYTES:
        raise fields.problem(name, value, f"must be one of {', '.join(STATE_BYTES)}")
    return STATE_BYTES[value]


def _mamba2(fields: Fields, architecture: str, shared: dict[str, Any]) -> tuple[Layer, StateLayers]:
    """Mamba 2 (arXiv:2405.21060). Its kernels save the state at the last boundary in a prompt."""
    hidden = fields.count("hidden_size")
    granite = architecture == "granitemoehybrid"

    def count(name: str, default: int | None = None, least: int = 1) -> int:
        names = (NAMES_OF_GRANITE[name],) if granite else (name, NAMES_OF_GRANITE[name])
        return fields.count(*names, default=default, least=least)

    heads, groups, columns = count("mamba_num_heads"), count("n_groups"), count("ssm_state_size")
    kernel = count("conv_kernel", default=4, least=2)
    chunk = count("chunk_size", default=256)
    if granite and fields.get("mamba_d_head") in (None, "auto"):
        rows = fields.count("mamba_expand", default=2) * hidden // heads
    else:
        rows = count("mamba_head_dim")
    inner = heads * rows
    channels = inner + 2 * groups * columns
    module = "mixer" if architecture == "nemotron_h" else "mamba"
    matrices = [
        Matrix(f"{module}.in_proj", hidden, inner + channels + heads),
        Matrix(f"{module}.out_proj", inner, hidden),
    ]
    # The convolution, a norm, and two numbers per head; the decays have 32 bits.
    others = channels * kernel + inner + 2 * heads
    if fields.flag("use_conv_bias" if module == "mixer" else "mamba_conv_bias", default=True):
        others += channels
    if fields.flag("use_bias" if module == "mixer" else "mamba_proj_bias"):
        others += inner + channels + heads + hidden
    states = StateLayers(
        channels=inner,
        groups=groups,
        group_channels=2 * columns,
        taps=kernel - 1,
        heads=heads,
        rows=rows,
        columns=columns,
        matrix_bytes=SIXTEEN_BITS
        if granite
        else _matrix_bytes(fields, "mamba_ssm_cache_dtype", "float32"),
        flops=heads * (4 * rows * columns + 2 * chunk * rows) + 2 * groups * chunk * columns,
        inside=True,
        **shared,
    )
    return Layer(matrices, others, wide=heads), states
