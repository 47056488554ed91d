"""Computes a `Model` from a config.json of Hugging Face's `transformers`.

In: the fields of the config. Out: sizes of weights and KV, as vLLM loads them: without layers for
multi-token prediction, and with 16 bits for parameters that are not quantised.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from servers.basics.errors import InvalidInput
from servers.basics.nearest import nearest
from servers.profiles.models.architectures import (
    ARCHITECTURES,
    OTHER_MEMORY,
    TEXT_PARTS,
    Architecture,
)
from servers.profiles.models.attention import Attention, attentions
from servers.profiles.models.fields import MOST_LAYERS, Fields
from servers.profiles.models.layer import Layer, Matrix
from servers.profiles.models.mlp import (
    EXPERTS_PER_TOKEN,
    dense,
    experts_of,
    mixture,
    mixture_layers,
)
from servers.profiles.models.quantization import FULL, Quantization, quantization_of
from servers.profiles.models.shape import Indexer, LayerKind, Model, Use, Weights
from servers.profiles.models.sparse import flags, indexed_layers, indexer_of, scorer
from servers.profiles.models.states import Kind, Stateful, stateful
from servers.profiles.models.vision import vision_weights

KV_BYTES, KV_FP8_BYTES = 2, 1
SIZE_BYTES = 2
"""Bytes of a parameter that is not quantised."""
WIDE_BYTES = 4


def model_of(
    config: Mapping[str, Any],
    name: str,
    *,
    gpus: int | None = None,
    source: str = "a config.json",
    where: str | None = None,
) -> Model:
    """Return the model that a config describes. `where` names the config in errors. Raises
    InvalidInput."""
    where = where or name
    fields, architecture = _text_part(config, where)
    traits = ARCHITECTURES[architecture]
    quantization = quantization_of(config, where)
    if quantization is FULL:
        quantization = quantization_of(fields.values, where)
    heads = fields.count("num_attention_heads")
    found = stateful(fields, architecture) if traits.states else None
    layers = len(found.kinds) if found else fields.count("num_hidden_layers", most=MOST_LAYERS)
    windows = _windows(fields, traits, layers)
    attention = attentions(fields, traits, heads)
    indexed = indexed_layers(fields, traits.latent, layers) if traits.indexed else []
    indexer = indexer_of(fields, traits.latent, indexed) if indexed else None
    if indexer and traits.latent:  # Queries are multiplied with latent vectors, also in prompts.
        pair_dims = heads * (attention[0].entries + fields.count("kv_lora_rank"))
        attention = (attention[0]._replace(pair_dims=pair_dims),) * 2
    experts = experts_of(fields, traits, found)
    parts = _parts(fields, traits, attention, windows, experts, found)
    expert_layers = len(parts[-1][1]) if experts else 0
    if indexer is not None:
        parts.append((scorer(fields, indexer), indexed))
    per_token = fields.count(*EXPERTS_PER_TOKEN, least=1, most=experts) if experts else 0
    entry_bytes = KV_FP8_BYTES if quantization.fp8_kv else KV_BYTES
    return Model(
        name=name,
        architecture=architecture,
        hidden=fields.count("hidden_size"),
        heads=heads,
        vocab=fields.count("vocab_size"),
        kinds=tuple(
            replace(
                kind,
                kv_heads=attention[kind.window is not None].kv_heads,
                entries=attention[kind.window is not None].entries,
                pair_dims=attention[kind.window is not None].pair_dims,
                entry_bytes=entry_bytes,
            )
            for kind in _kept(fields, traits, windows, found, indexer)
        ),
        weights=_weights(fields, parts, quantization)
        + vision_weights(config, where, fields.count("hidden_size")),
        experts=experts,
        experts_per_token=per_token,
        matmul=quantization.matmul,
        precision=quantization.words,
        max_model_len=_max_model_len(fields),
        gpus=gpus,
        source=source,
        config=config,
        states=found and found.states,
        indexer=indexer,
        other_layers=_other_layers(found),
        expert_layers=expert_layers,
        reduces_per_layer=1 if traits.mixers else 2,
    )


def _other_layers(found: Stateful | None) -> int:
    return sum(kind in ("dense", "experts") for kind in found.kinds) if found else 0


def _text_part(config: Mapping[str, Any], where: str) -> tuple[Fields, str]:
    top = Fields(config, where)
    architecture = top.get("model_type")
    if isinstance(architecture, str) and architecture in TEXT_PARTS:
        text = top.inner("text_config")
        if (tied := top.get("tie_word_embeddings")) is not None:
            text = {**text, "tie_word_embeddings": tied}  # as vLLM does
        architecture = text.get("model_type", TEXT_PARTS[architecture])
    else:
        text = config
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        known = (*ARCHITECTURES, *TEXT_PARTS)
        close = _meant(architecture, known) if isinstance(architecture, str) else ""
        hint = f"did you mean {close}? " if close else ""
        stated = "lacks model_type"
        if architecture is not None:
            stated = f"model_type is {str(architecture)[:40]!r}, which is not supported"
        if isinstance(architecture, str) and architecture in OTHER_MEMORY:
            stated += f": its layers have {OTHER_MEMORY[architecture]}"
        raise InvalidInput(f"{where}: {stated}; {hint}supported are {', '.join(known)}")
    return Fields(text, where, ARCHITECTURES[architecture].defaults), architecture


def _meant(architecture: str, known: Sequence[str]) -> str:
    """Return the supported architecture that a misspelt name means. Another number or another word
    is another architecture, whose layers may keep other KV."""
    close = nearest(architecture, known)
    parts, others = (re.findall("[a-z]+|[0-9]+", name.lower()) for name in (architecture, close))
    if len(parts) != len(others):
        return ""
    same = (
        part == other or (part.isalpha() and bool(nearest(part, [other])))
        for part, other in zip(parts, others, strict=True)
    )
    return close if all(same) else ""


def _weights(
    fields: Fields, parts: list[tuple[Layer, list[int]]], quantization: Quantization
) -> tuple[Weights, ...]:
    """Return the weights of the parts of layers, of the tables and of the last norm."""
    hidden, vocab = fields.count("hidden_size"), fields.count("vocab_size")
    totals: dict[tuple[Use, bool], list[int]] = {}

    def add(use: Use, params: int, size_bytes: int, on_every_gpu: bool = False) -> None:
        total = totals.setdefault((use, on_every_gpu), [0, 0])
        total[0] += params
        total[1] += size_bytes

    tied = fields.flag("tie_word_embeddings")
    mixed = quantization.modules is not None and not tied
    head = quantization.of("lm_head") if mixed else FULL
    add("head", vocab * hidden, head.matrix_bytes(hidden, vocab))
    if not tied:
        add("embedding", vocab * hidden, vocab * hidden * SIZE_BYTES)
    add("layers", hidden, hidden * SIZE_BYTES)  # the last norm
    for part, which in parts:
        add("layers", part.others * len(which), part.others * len(which) * SIZE_BYTES)
        add("layers", part.wide * len(which), part.wide * len(which) * WIDE_BYTES)
        biases = part.expert_biases * len(which)
        add("experts", biases, biases * SIZE_BYTES)
        for matrix in part.matrices:
            params = matrix.number * matrix.inputs * matrix.outputs
            size = matrix.number * _stored_bytes(matrix, which, quantization)
            add(matrix.use, params * len(which), size, matrix.on_every_gpu)
    return tuple(
        Weights(use, params, size, on_every_gpu)
        for (use, on_every_gpu), (params, size) in totals.items()
        if params
    )


def _parts(
    fields: Fields,
    traits: Architecture,
    attention: tuple[Attention, Attention],
    windows: list[int | None],
    experts: int,
    found: Stateful | None,
) -> list[tuple[Layer, list[int]]]:
    """Return the parts of layers, each with the layers that have it."""
    every = list(range(len(windows)))
    routed = mixture_layers(fields, traits, len(windows), experts)
    having: dict[Kind, list[int]] = {
        "attention": every,
        "dense": [layer for layer in every if traits.beside_mlp or not routed[layer]],
        "experts": [layer for layer in every if routed[layer]],
    }
    parts = [(Layer([], traits.norms * fields.count("hidden_size")), every)]
    if found is not None:
        for kind in (
            ("attention", "state", "dense", "experts") if traits.mixers else ("attention", "state")
        ):
            having[kind] = [layer for layer in every if found.kinds[layer] == kind]
        parts.append((found.layer, having["state"]))
    for local, one in enumerate(attention):
        which = [layer for layer in having["attention"] if (windows[layer] is not None) == local]
        parts += [(one.layer, which)] if which else []
    if having["dense"]:
        parts.append((dense(fields, traits), having["dense"]))
    if having["experts"]:
        parts.append((mixture(fields, traits, experts), having["experts"]))
    return parts


def _stored_bytes(matrix: Matrix, layers: list[int], quantization: Quantization) -> int:
    """Return the bytes of a matrix in all of these layers."""
    if matrix.full or (quantization.experts_only and matrix.use != "experts"):
        return len(layers) * matrix.inputs * matrix.outputs * SIZE_BYTES
    differing = layers if quantization.by_layer else layers[:1]
    formats = (quantization.of(f"model.layers.{layer}.{matrix.module}") for layer in differing)
    sizes = [each.matrix_bytes(matrix.inputs, matrix.outputs) for each in formats]
    return sum(sizes) if quantization.by_layer else sizes[0] * len(layers)


def _kept(
    fields: Fields,
    traits: Architecture,
    windows: list[int | None],
    found: Stateful | None,
    indexer: Indexer | None,
) -> list[LayerKind]:
    """Return the layers with KV by kind, without the sizes of their KV."""
    layers = len(windows)
    if indexer is not None:
        # Layers of latent attention without an indexer use what the last one before them chose.
        own = LayerKind(indexer.layers, None, 0, 0, 0, indexer.key_bytes, sparse=True)
        other = LayerKind(layers - indexer.layers, None, 0, 0, 0, sparse=traits.latent)
        return [kind for kind in (own, other) if kind.layers]
    if found is None:
        return [
            LayerKind(n, window, 0, 0, 0, chunked=traits.chunks and window is not None)
            for window, n in Counter(windows).items()
        ]
    if traits.mixers and (window := fields.get("sliding_window")) is not None:
        raise fields.problem(
            "sliding_window", window, "must be null; no windows are supported beside states"
        )
    return [LayerKind(found.kinds.count("attention"), None, 0, 0, 0)]


def _windows(fields: Fields, traits: Architecture, layers: int) -> list[int | None]:
    """Return the window of each layer; None for those that attend to all tokens."""
    for name, what in (
        ("num_kv_shared_layers", "layers that share KV"),
        ("hidden_size_per_layer_input", "embeddings per layer"),
    ):
        if count := fields.count(name, default=0, least=0):
            raise fields.problem(name, count, f"{what} are not supported; it must be 0")
    if traits.latent or traits.states:
        return [None] * layers
    kinds = fields.get("layer_types")
    known = ("full_attention", "chunked_attention" if traits.chunks else "sliding_attention")
    for kind in kinds if isinstance(kinds, list) else ():
        if kind not in known:
            raise fields.problem("layer_types", kind, f"must be {' or '.join(known)}")
    if traits.window_switch and not fields.flag("use_sliding_window"):
        return [None] * layers
    size, pattern = "sliding_window", "sliding_window_pattern"
    if traits.chunks:
        size, pattern = "attention_chunk_size", "no_rope_layer_interval"
    unset = size in fields.values and fields.values[size] is None
    if unset or fields.get(size) is None:
        return [None] * layers
    window = fields.count(size, least=2 if traits.chunks else 1)
    if traits.window_flags and (not traits.chunks or fields.get(traits.window_flags)):
        local = flags(fields, traits.window_flags, layers)
    elif kinds is not None and not traits.chunks:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise fields.problem(
                "layer_types", kinds, f"must be a list of {layers} kinds of layers"
            )
        local = [kind == "sliding_attention" for kind in kinds]
    elif every := fields.count(pattern, default=traits.windows, least=0):
        local = [bool((layer + 1) % every) for layer in range(layers)]
    elif traits.window_switch:
        first = fields.count("max_window_layers", default=0, least=0)
        local = [layer >= first for layer in range(layers)]
    else:
        local = [True] * layers
    return [window if is_local else None for is_local in local]


def _max_model_len(fields: Fields) -> int:
    """Return the longest context. YaRN multiplies the length that the model was trained with."""
    has_other = fields.get("model_max_length") is not None
    longest = fields.count("model_max_length" if has_other else "max_position_embeddings")
    scaling = fields.inner("rope_scaling") or fields.inner("rope_parameters")
    kind = scaling.get("rope_type", scaling.get("type"))
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if kind != "yarn" or original is None:
        return longest
    trained = Fields(scaling, fields.where).count("original_max_position_embeddings")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1e6:
        raise fields.problem("rope_scaling.factor", factor, "must be a number from 1 to 1,000,000")
    return round(trained * factor)
