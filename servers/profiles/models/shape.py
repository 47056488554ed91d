"""Defines the parts of a model that step times and KV memory depend on: weights, attention, KV.

`servers.profiles.models.config` computes a `Model` from a config.json. Parameters are counts;
weights and KV are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

DENSE_MFU, EXPERTS_MFU = 0.65, 0.3
"""Share of the tensor peak that the matrix products of a prompt reach, without and with a mixture
of experts: about the median of the GPUs that operator tables cover."""

Use = Literal["embedding", "head", "layers", "experts", "vision"]
"""When a step reads weights: single rows (embedding), the whole once (head, which multiplies one
token per turn, and layers, which multiply all), only where tokens are routed (experts), or not for
text (vision). An embedding that is also the head counts as head."""


@dataclass(frozen=True, slots=True)
class Weights:
    use: Use
    params: int
    size_bytes: int
    on_every_gpu: bool = False
    """Whether tensor parallelism copies these weights instead of dividing them."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers whose KV has the same size and the same lifetime."""

    layers: int
    window: int | None
    """Number of last tokens that these layers attend to, or of tokens in a chunk; None for all."""
    kv_heads: int
    """1 for multi-head latent attention, whose one entry serves all heads."""
    entries: int
    """KV entries per token, layer and KV head: keys and values, or the latent vector with the
    rotary part of the key."""
    entry_bytes: int
    other_bytes: int = 0
    """Further bytes per token and layer on each GPU: scales, and the key of an indexer."""
    sparse: bool = False
    """Whether these layers attend to the tokens that an indexer chooses."""
    chunked: bool = False
    """Whether these layers attend to the tokens in the same chunk."""
    pair_dims: int = 0
    """Dimensions of the keys and values of all query heads together, which a query-key pair is
    multiplied with in a prefill."""

    @property
    def kv_group(self) -> int | None:
        """The layers as a group of `servers.profiles.kv_memory`."""
        return -self.window if self.chunked and self.window is not None else self.window

    def bytes_per_token(self, gpus: int = 1) -> int:
        """Return the KV bytes of one token in these layers, on all GPUs of a tensor-parallel group.
        A GPU keeps at least one KV head, so that more GPUs than KV heads keep copies."""
        return self.layers * self.bytes_of_layer(gpus)

    def bytes_of_layer(self, gpus: int = 1) -> int:
        """Return the same for one layer."""
        return max(self.kv_heads, gpus) * self.entries * self.entry_bytes + gpus * self.other_bytes


@dataclass(frozen=True, slots=True)
class Indexer:
    """The indexer of sparse attention (DeepSeek-V3.2, arXiv:2512.02556, section 2). It scores all
    tokens of a context, and layers attend to those with the highest scores. Each GPU keeps all
    keys."""

    layers: int
    """Layers with an indexer; others use the tokens that the last one before them chose."""
    tokens: int
    """Number of tokens that a query attends to."""
    heads: int
    size: int
    """Dimensions of a head's query and of a token's key."""
    key_bytes: int
    fp8: bool
    """Whether keys are multiplied in FP8."""
    copied: bool
    """Whether each GPU has all heads."""
    block_tokens: int
    """The tokens of a block are a multiple of this."""
    token_s: float = 0.0
    """Time in which a layer chooses tokens for one token of a prompt, whatever else it computes."""
    decode_s: float = 0.0
    """Time that a layer adds to each step with decodes."""
    prompt_s: float = 0.0
    """Time that a layer adds to each step with tokens of a prompt."""


@dataclass(frozen=True, slots=True)
class StateLayers:
    """Layers with linear attention or a state-space model. Each keeps a state of constant size per
    turn: the inputs of a convolution over the last tokens, and a matrix per head."""

    layers: int
    channels: int
    """Inputs of the convolution, without the groups'."""
    taps: int
    """Number of tokens whose inputs it keeps."""
    tap_bytes: int
    heads: int
    rows: int
    columns: int
    """Sizes of the matrix of a head."""
    matrix_bytes: int
    """Bytes of an entry of the matrix."""
    flops: int
    """FLOPs per token in a layer, without projections."""
    token_s: float = 0.0
    """Shortest time of a prompt's token in a layer, however many heads and GPUs compute it."""
    groups: int = 0
    """Groups of heads that share inputs. A single group is copied to each GPU."""
    group_channels: int = 0
    key_heads: int = 0
    """Heads with keys of their own, which GPUs divide too; 0 if all of `heads` have them."""
    first: bool = True
    """Whether such a layer is the first one that keeps a state or KV."""
    inside: bool = False
    """Whether the kernels can save the state inside a chunk of a prompt."""
    block_tokens: int = 1
    """The tokens of a block are a multiple of this."""

    def bytes_on(self, gpus: int) -> int:
        """Return the bytes of one layer's state, on all GPUs of a tensor-parallel group."""
        groups = gpus if self.groups == 1 else self.groups
        channels = self.channels + groups * self.group_channels
        matrices = self.heads * self.rows * self.columns * self.matrix_bytes
        return channels * self.taps * self.tap_bytes + matrices

    def divides(self, gpus: int) -> bool:
        """Return whether vLLM can divide the heads and their groups."""
        groups = 0 if self.groups == 1 else self.groups
        return not any(count % gpus for count in (self.heads, self.key_heads, groups))


@dataclass(frozen=True)
class Model:
    name: str
    architecture: str
    """`model_type` of the config."""
    hidden: int
    heads: int
    vocab: int
    kinds: tuple[LayerKind, ...]
    weights: tuple[Weights, ...]
    experts: int
    """Routed experts per layer, or 0."""
    experts_per_token: int
    matmul: Literal["bf16", "fp8"]
    """Format of the matrix products. Weights of less than 16 bits are widened before a product
    unless activations also have 8 or 4 bits; FP4 rates of GPUs are not listed."""
    precision: str
    """Format of the weights in words, for readers."""
    max_model_len: int
    gpus: int | None
    """Default tensor parallel size; None for the smallest that fits on the machine."""
    source: str
    config: Mapping[str, Any] = field(repr=False, compare=False)
    states: StateLayers | None = None
    """The layers that keep a state instead of KV."""
    indexer: Indexer | None = None
    other_layers: int = 0
    """Layers that keep neither."""
    expert_layers: int = 0
    """Layers with experts."""
    reduces_per_layer: int = 2
    """All-reduces of a layer under tensor parallelism: one after attention or a state, and one
    after an MLP or experts."""

    @cached_property
    def layers(self) -> int:
        keep_state = self.states.layers if self.states else 0
        return sum(kind.layers for kind in self.kinds) + keep_state + self.other_layers

    def state_bytes_on(self, gpus: int) -> int:
        """Return the bytes of a turn's states in all layers, on all GPUs; 0 without states."""
        return self.states.layers * self.states.bytes_on(gpus) if self.states else 0

    @cached_property
    def params(self) -> int:
        """Number of loaded parameters."""
        return self._params("embedding", "head", "layers", "experts", "vision")

    @cached_property
    def step_params(self) -> int:
        """Number of parameters that a step of many tokens reads: all but a separate input embedding
        and a vision tower."""
        return self._params("head", "layers", "experts")

    @cached_property
    def token_params(self) -> int:
        """Parameters that are multiplied with one prompt token: without input embedding and output
        head, and of the experts only those to which the token is routed."""
        routed = self._params("experts")
        if self.experts:
            routed = routed * self.experts_per_token // self.experts
        return self._params("layers") + routed

    def _params(self, *uses: Use) -> int:
        return sum(each.params for each in self.weights if each.use in uses)

    @cached_property
    def weight_bytes(self) -> int:
        return self.weight_bytes_on(1)

    def weight_bytes_on(self, gpus: int) -> int:
        """Return the bytes on all GPUs of a tensor-parallel group."""
        return sum(each.size_bytes * (gpus if each.on_every_gpu else 1) for each in self.weights)

    def experts_read(self, tokens: float) -> float:
        """Return the share of the experts that a step of this many tokens reads: 1 - (1 -
        k/E)^tokens, as each token takes k of E at random."""
        if not self.experts:
            return 1.0
        unread: float = (1 - self.experts_per_token / self.experts) ** tokens
        return 1 - unread

    def step_bytes(self, tokens: float = math.inf) -> int:
        """Return the bytes of weights that a step of this many tokens reads."""
        experts = sum(each.size_bytes for each in self.weights if each.use == "experts")
        rest = sum(each.size_bytes for each in self.weights if each.use in ("head", "layers"))
        return rest + round(experts * self.experts_read(tokens))

    @cached_property
    def prefill_mfu(self) -> float:
        return EXPERTS_MFU if self.experts else DENSE_MFU

    @cached_property
    def kv_bytes_per_token(self) -> int:
        return self.kv_bytes_per_token_on(1)

    def kv_bytes_per_token_on(self, gpus: int) -> int:
        """Return the KV bytes of one token, on all GPUs of a tensor-parallel group."""
        return sum(kind.bytes_per_token(gpus) for kind in self.kinds)

    @cached_property
    def window(self) -> int | None:
        """Number of tokens that a query attends to in layers with a sliding window or with sparse
        attention; a config has one such number. None if all layers attend to all tokens."""
        if self.indexer is not None:
            return self.indexer.tokens
        return next((kind.window for kind in self.kinds if kind.window is not None), None)

    def read_bytes_per_token_on(self, gpus: int, *, windows: bool) -> int:
        """Return the KV bytes that a decode reads for each token that layers attend to, on all
        GPUs: for the layers with a window, or for all others. With sparse attention, an indexer
        reads its keys of all tokens."""
        found = sum(kind.bytes_per_token(gpus) for kind in self._kinds(windows))
        keys = gpus * self.indexer.layers * self.indexer.key_bytes if self.indexer else 0
        return found - keys if windows else found + keys

    def flops_per_pair(self, *, windows: bool) -> int:
        """FLOPs per query-key pair of the layers with a window, or of all others: 2 (multiply and
        add) × dimensions of all heads' keys and values × layers."""
        return sum(2 * kind.pair_dims * kind.layers for kind in self._kinds(windows))

    def _kinds(self, windows: bool) -> list[LayerKind]:
        """Return the layers that attend to some tokens, or those that attend to all."""
        return [kind for kind in self.kinds if (kind.sparse or kind.window is not None) == windows]
