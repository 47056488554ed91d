"""How GPUs divide a model: tensor parallelism, or attention data parallelism with expert
parallelism (vLLM's `--data-parallel-size N --enable-expert-parallel`).

With data parallelism, each of N GPUs is a rank: it has a scheduler and KV of its own, all weights
but those of experts, and an Nth of the experts. All ranks compute their steps together, because in
each layer with experts each rank computes its experts for the tokens of all ranks.
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


@dataclass(frozen=True, slots=True)
class ExpertTimes:
    """The part of a step that ranks compute for each other: the experts of all layers, by the
    tokens of all ranks. The profile of a rank contains it for the rank's own tokens."""

    knots: Knots
    token_ps: int

    def ps(self, tokens: int) -> int:
        return knots_ps(self.knots, self.token_ps, tokens)


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
