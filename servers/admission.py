"""What vLLM admits: the defaults of its limits for a step, and its two rules for how much memory a
waiting turn needs."""

from __future__ import annotations

from enum import StrEnum

STEP_TOKENS = 2048
"""The default of --step-tokens: tokens that one step computes at most."""
MAX_NUM_SEQS = 256
"""The default of --max-num-seqs: turns that run at once at most."""


class Admission(StrEnum):
    WHOLE_PROMPT = "whole-prompt"
    """Its whole prompt must fit into the free blocks: vLLM's default since March 2026
    (`scheduler_reserve_full_isl`)."""
    FIRST_CHUNK = "first-chunk"
    """The part of its prompt that the next step computes must fit, as in older versions."""
