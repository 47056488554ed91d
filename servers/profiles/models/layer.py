"""Defines the parameters of a layer, or of a part of one."""

from __future__ import annotations

from typing import NamedTuple

from servers.profiles.models.shape import Use


class Matrix(NamedTuple):
    """A matrix that quantisation may apply to, in each of the layers that have it."""

    module: str
    """The name within a layer."""
    inputs: int
    outputs: int
    use: Use = "layers"
    number: int = 1
    """Number of such matrices in a layer."""
    on_every_gpu: bool = False
    full: bool = False
    """Whether vLLM keeps 16 bits whatever the checkpoint has."""


class Layer(NamedTuple):
    matrices: list[Matrix]
    others: int
    """Number of 16-bit parameters: norms, biases and routers."""
    expert_biases: int = 0
    wide: int = 0
    """Number of parameters that vLLM keeps in 32 bits, such as routers."""
