"""The two rules of vLLM for how much memory the admission of a waiting turn needs."""

from __future__ import annotations

from enum import StrEnum


class Admission(StrEnum):
    WHOLE_PROMPT = "whole-prompt"
    """Its whole prompt must fit into the free blocks: vLLM's default since March 2026
    (`scheduler_reserve_full_isl`)."""
    FIRST_CHUNK = "first-chunk"
    """The part of its prompt that the next step computes must fit, as in older versions."""
