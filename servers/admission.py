"""What vLLM admits: the defaults of its limits for a step, its two rules for how much memory a
waiting turn needs, and its settings that leave room for other turns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import get_type_hints

from servers.basics.errors import InvalidInput
from servers.speculation import Speculation, parse_speculation

STEP_TOKENS = 2048
"""The default of --step-tokens: tokens that one step computes at most."""
MAX_NUM_SEQS = 256
"""The default of --max-num-seqs: turns that run at once at most."""

OTHER_SCHEDULER = "whose scheduler is not vLLM's and has no such setting; remove it"
"""Why engines without vLLM's scheduler refuse a setting of `Headroom`."""


class Admission(StrEnum):
    WHOLE_PROMPT = "whole-prompt"
    """Its whole prompt must fit into the free blocks: vLLM's default since March 2026
    (`scheduler_reserve_full_isl`)."""
    FIRST_CHUNK = "first-chunk"
    """The part of its prompt that the next step computes must fit, as in older versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """vLLM's `long_prefill_token_threshold`, with `_adaptive`, and `watermark`: what a turn leaves
    of a step's tokens, and its admission of the KV memory. Off by default."""

    long_prefill: int = 0
    """Most tokens that a step computes of one turn, unless no other turn runs or waits."""
    long_prefill_adaptive: bool = False
    """Whether that is at least an equal share of the step's tokens."""
    watermark: float = 0.0
    """Share of the KV blocks that the admission of a turn must leave free, if another one runs."""

    def __post_init__(self) -> None:
        if self.long_prefill < 0:
            raise InvalidInput(
                f"--long-prefill {self.long_prefill}: must be at least 1, or 0 for no cap"
            )
        if self.long_prefill_adaptive and not self.long_prefill:
            raise InvalidInput(
                "--long-prefill-adaptive: raises the cap of --long-prefill, which is off; add "
                "--long-prefill 512, or remove it"
            )
        if not 0 <= self.watermark < 1:
            raise InvalidInput(f"--watermark {self.watermark:g}: must be at least 0 and below 1")

    def vllm_flags(self) -> list[str]:
        """Return the flags of `vllm serve` for what is not off."""
        flags = []
        if self.long_prefill:
            flags += ["--long-prefill-token-threshold", str(self.long_prefill)]
        if self.long_prefill_adaptive:
            flags.append("--long-prefill-token-threshold-adaptive")
        if self.watermark:
            flags += ["--watermark", str(self.watermark)]
        return flags

    def blocks_left(self, kv_blocks: int) -> int:
        """Return how many of `kv_blocks` blocks an admission must leave free, if a turn runs. vLLM
        also counts its null block."""
        return int(self.watermark * (kv_blocks + 1))

    def most_chunk(self, step_tokens: int, turns: int) -> int:
        """Return how many tokens a step of `step_tokens` computes of one turn at most, if `turns`
        turns run or wait."""
        if not self.long_prefill or turns <= 1:
            return step_tokens
        share = step_tokens // turns if self.long_prefill_adaptive else 0
        return max(self.long_prefill, share)


HEADROOM = tuple(get_type_hints(Headroom))
"""The names of these settings."""


@dataclass(frozen=True, slots=True)
class Limits(Headroom):
    """vLLM's `max_num_seqs`, `max_num_batched_tokens` and `scheduler_reserve_full_isl`, the
    headroom, and speculative decoding."""

    max_num_seqs: int = MAX_NUM_SEQS
    step_tokens: int = STEP_TOKENS
    admission: Admission = Admission.WHOLE_PROMPT
    speculate: str | None = None
    """As `servers.speculation` reads it; None: each step generates one token of a turn."""

    @property
    def speculation(self) -> Speculation | None:
        return None if self.speculate is None else parse_speculation(self.speculate)

    def __post_init__(self) -> None:
        Headroom.__post_init__(self)
        for option, value in (
            ("--max-num-seqs", self.max_num_seqs),
            ("--step-tokens", self.step_tokens),
        ):
            if value < 1:
                raise InvalidInput(f"{option} {value}: must be at least 1")
        if self.step_tokens < self.max_num_seqs:
            raise InvalidInput(
                f"--step-tokens {self.step_tokens} is less than --max-num-seqs "
                f"{self.max_num_seqs}: each running turn needs a token per step; change one of them"
            )
        if self.speculation is not None:
            self._check_drafts(self.speculation.tokens)

    def _check_drafts(self, drafts: int) -> None:
        """vLLM stops with an assertion if a step has no room for a turn with all its drafts."""
        for option, value in (
            ("--step-tokens", self.step_tokens),
            ("--long-prefill", self.long_prefill or self.step_tokens),
        ):
            if value <= drafts:
                raise InvalidInput(
                    f"{option} {value}: a step has no room for a turn's token and its {drafts} "
                    f"draft tokens; use at least {drafts + 1}, or fewer drafts in --speculate"
                )
