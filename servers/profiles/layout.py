"""How GPUs divide a model: tensor parallelism, attention data parallelism with expert parallelism
(vLLM's `--data-parallel-size N --enable-expert-parallel`), or pipeline parallelism
(`--pipeline-parallel-size N`).

With data parallelism, each of N GPUs is a rank: it has a scheduler and KV of its own, all weights
but those of experts, and an Nth of the experts. All ranks compute their steps together, because in
each layer with experts each rank computes its experts for the tokens of all ranks.

In a pipeline, each of N GPUs is a stage: it has an Nth of the layers and their KV, and sends what
it computed of a batch to the next stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from servers.basics.errors import InvalidInput
from servers.profiles.models.shape import Model
from servers.profiles.profile import Knots, knots_ps


class Layout(StrEnum):
    TP = "tp"
    DP_ATTN = "dp-attn"
    PP = "pp"


@dataclass(frozen=True, slots=True)
class ExpertTimes:
    """The part of a step that ranks compute for each other: the experts of all layers, by the
    tokens of all ranks. The profile of a rank contains it for the rank's own tokens."""

    knots: Knots
    token_ps: int

    def ps(self, tokens: int) -> int:
        return knots_ps(self.knots, self.token_ps, tokens)


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a pipeline. A step takes as long in each as the profile says."""

    count: int
    transfer_ps: int
    """Time until the activations of a step begin to arrive at the next stage."""
    transfer_token_ps: int
    """The time in which those of a token are sent."""


def rank_of(llm: Model, ranks: int) -> Model:
    """Return the model with the weights of the rank with the most experts. Raises InvalidInput if
    it has no experts, or if there are too few ranks or experts."""
    option = f"--layout {Layout.DP_ATTN}"
    if not llm.experts:
        raise InvalidInput(
            f"{option}: {llm.name} has no experts, so that its ranks would share nothing; use "
            f"--gpus 1 --replicas {max(ranks, 2)}"
        )
    if not 2 <= ranks <= llm.experts:
        raise InvalidInput(
            f"{option}: {ranks} GPU{'s' * (ranks > 1)} cannot share the {llm.experts} experts of "
            f"{llm.name}; use --gpus with 2 to {llm.experts}"
        )
    most = math.ceil(llm.experts / ranks)
    weights = (
        replace(
            each,
            params=each.params * most // llm.experts,
            size_bytes=each.size_bytes * most // llm.experts,
        )
        if each.use == "experts"
        else each
        for each in llm.weights
    )
    return replace(llm, weights=tuple(weights))


def experts_of(rank: Model) -> Model:
    """Return the model with the experts of a rank only."""
    experts = tuple(each for each in rank.weights if each.use == "experts")
    return replace(rank, weights=experts, states=None, indexer=None)


def stages_of(llm: Model, count: int) -> list[Model]:
    """Return the part of the model that each stage has. vLLM gives layers that are left over to the
    stages before the last one, beginning at the end. The first stage has the embedding, and the
    last one the output head; if they are the same, both have it. Raises InvalidInput if there are
    too few stages or layers, or layers of several kinds."""
    option = f"--layout {Layout.PP}"
    if len(llm.kinds) > 1 or llm.window is not None or llm.states is not None:
        raise InvalidInput(
            f"{option}: {llm.name} has sliding windows, chunks, states or sparse attention, for "
            f"which pipelines are not modelled; use --layout {Layout.TP}, or a model whose layers "
            "attend to all tokens"
        )
    if not 2 <= count <= llm.layers:
        raise InvalidInput(
            f"{option}: {count} GPU{'s' * (count > 1)} cannot share the {llm.layers} layers of "
            f"{llm.name}; use --gpus with 2 to {llm.layers}"
        )
    fewest, left = divmod(llm.layers, count)
    return [
        _stage(llm, fewest + (count - 1 - left <= i < count - 1), first=i == 0, last=i == count - 1)
        for i in range(count)
    ]


def _stage(llm: Model, layers: int, *, first: bool, last: bool) -> Model:
    tied = not any(each.use == "embedding" for each in llm.weights)
    ends = {"embedding": first, "vision": first, "head": last or (first and tied)}
    weights = (
        each
        if each.use in ends
        else replace(
            each,
            params=each.params * layers // llm.layers,
            size_bytes=each.size_bytes * layers // llm.layers,
        )
        for each in llm.weights
        if ends.get(each.use, True)
    )
    kinds = tuple(replace(kind, layers=layers) for kind in llm.kinds)
    return replace(llm, kinds=kinds, weights=tuple(weights))


def slowest(stages: list[Model]) -> Model:
    """Return a stage with the most layers and the output head."""
    most = max(stages, key=lambda stage: stage.layers)
    if any(each.use == "head" for each in most.weights):
        return most
    head = tuple(each for each in stages[-1].weights if each.use == "head")
    return replace(most, weights=(*most.weights, *head))
