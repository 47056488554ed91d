"""Computes sizes of vision towers of multimodal models, which take memory but no time for text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from servers.profiles.models.fields import Fields
from servers.profiles.models.shape import Weights

SIZE_BYTES = 2
"""Bytes of a parameter; towers are not quantised."""


def vision_weights(config: Mapping[str, Any], where: str, hidden: int) -> tuple[Weights, ...]:
    """Return the weights of a vision tower with its projector to the text part's `hidden`
    dimensions, which text does not use."""
    parameters = TOWERS.get(str(config.get("model_type")))
    if parameters is None or not config.get("vision_config"):
        return ()
    projector = {name: config.get(name) for name in ("spatial_merge_size", "projector_hidden_size")}
    fields = Fields({**projector, **Fields(config, where).inner("vision_config")}, where)
    params = parameters(fields, hidden)
    return (Weights("vision", params, params * SIZE_BYTES),)


def _siglip(fields: Fields, hidden: int) -> int:
    """The tower of Gemma 3, with biases and positions."""
    width, inner, layers, pixels = _sizes(fields)
    positions = (fields.count("image_size") // fields.count("patch_size")) ** 2
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    params = layers * layer + (pixels + 1) * width + positions * width + 2 * width
    return params + width + width * hidden  # projector


def _gemma4(fields: Fields, hidden: int) -> int:
    """The tower of Gemma 4, with norms of queries and keys, and positions in two dimensions."""
    width, inner, layers, pixels = _sizes(fields)
    size = fields.count("head_dim", default=64)
    heads, kv_heads = fields.count("num_attention_heads"), fields.count("num_key_value_heads")
    attention = 2 * width * (heads + kv_heads) * size + 2 * size
    layer = attention + 3 * width * inner + 4 * width
    positions = 2 * fields.count("position_embedding_size", default=10_240)
    return layers * layer + (pixels + positions) * width + width * hidden


def _pixtral(fields: Fields, hidden: int) -> int:
    width, inner, layers, pixels = _sizes(fields)
    merged = fields.count("spatial_merge_size", default=1) ** 2
    layer = 4 * width * width + 3 * width * inner + 2 * width
    params = layers * layer + pixels * width + width
    return params + width + merged * width * width + width * hidden + hidden * hidden


def _moonvit(fields: Fields, hidden: int) -> int:
    """The tower of Kimi K2.5, whose matrices all have biases. Its projector merges 2 × 2 patches.
    Published configs and configs written by transformers name the fields differently."""
    width, inner, layers, pixels = _sizes(fields)
    height = fields.count("init_pos_emb_height", "pos_emb_height")
    breadth = fields.count("init_pos_emb_width", "pos_emb_width")
    merged = 4 * width
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    params = layers * layer + (pixels + 1) * width + height * breadth * width + 2 * width
    return params + 2 * width + merged * merged + merged + merged * hidden + hidden


def _qwen3(fields: Fields, hidden: int) -> int:
    """The tower of Qwen3-VL and Qwen3.5, whose patches have two frames. Its projector merges 2 × 2
    patches, and so do those of the layers whose output Qwen3-VL adds to layers of the text part."""
    width, inner, layers, pixels = _sizes(fields)
    pixels *= fields.count("temporal_patch_size", default=2)
    merged = fields.count("spatial_merge_size", default=2) ** 2 * width
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    params = layers * layer + (pixels + 1) * width
    params += fields.count("num_position_embeddings", default=2304) * width + 2 * width
    projector = merged * merged + merged + merged * hidden + hidden
    deep = fields.get("deepstack_visual_indexes") or []
    if not isinstance(deep, list):
        raise fields.problem("deepstack_visual_indexes", deep, "must be a list of layers")
    return params + projector + len(deep) * (projector + 2 * merged)


def _llama4(fields: Fields, hidden: int) -> int:
    """The tower of Llama 4, with an embedding of the class and one position for it. An MLP without
    biases joins patches before the projector."""
    width, inner, layers, pixels = _sizes(fields)
    positions = (fields.count("image_size") // fields.count("patch_size")) ** 2 + 1
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    params = layers * layer + pixels * width + width + positions * width + 4 * width
    joined = fields.count("projector_input_dim")
    params += inner * joined + joined * fields.count("projector_output_dim")
    return params + fields.count("vision_output_dim") * hidden


def _minimax(fields: Fields, hidden: int) -> int:
    """The tower of MiniMax-M3, whose patches have two frames. A second projector merges 2 × 2."""
    width, inner, layers, pixels = _sizes(fields)
    middle = fields.count("projector_hidden_size", default=hidden)
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    params = layers * layer + 2 * pixels * width + 2 * width
    return params + (width + 1 + 4 * hidden + 1) * middle + 2 * (middle + 1) * hidden


def _sizes(fields: Fields) -> tuple[int, int, int, int]:
    """Return dimensions, dimensions inside the MLP, layers, and the numbers in a patch."""
    width = fields.count("hidden_size", "vt_hidden_size")
    inner = fields.count("intermediate_size", "vt_intermediate_size")
    layers = fields.count("num_hidden_layers", "vt_num_hidden_layers", "depth")
    return width, inner, layers, 3 * fields.count("patch_size") ** 2


TOWERS: Mapping[str, Callable[[Fields, int], int]] = {
    "gemma3": _siglip,
    "gemma4": _gemma4,
    "mistral3": _pixtral,
    "kimi_k25": _moonvit,
    "llama4": _llama4,
    "minimax_m3_vl": _minimax,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
    "qwen3_5": _qwen3,
    "qwen3_5_moe": _qwen3,
}
"""Parameters of the vision tower, by `model_type`."""
