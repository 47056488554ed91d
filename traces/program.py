"""A program (job) as a trace records it: turns, tool gaps, and what they share.

All loaders and recipes make these; replay and reports read nothing else of a trace. Frozen, so that
one list serves every variant of a sweep. Times in seconds, lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Provenance(StrEnum):
    """Where a duration comes from."""

    MEASURED = "measured"
    INFERRED = "inferred"
    SYNTHESISED = "synthesised"


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The leading tokens of a prompt: the same text in all prompts that name the same id.

    Of two prompts that name it with different lengths, the shorter one has the first part of it.
    """

    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One LLM request. Its context is its prompt followed by its output."""

    prompt_tokens: int
    """The whole prompt."""
    output_tokens: int
    kept_tokens: int = 0
    """Leading tokens of the prompt that repeat the previous turn's context, and so can hit its KV
    (0 in a first turn; less than the previous context where the agent rewrote its history)."""
    tools: tuple[str, ...] = ()
    """Tools that the answer calls, in order (`servers.tool_names`)."""
    command: str | None = None
    """What it runs, where the trace says so. Never executed by replay."""
    tool_gap_s: float = 0.0
    """From this turn's response to the next turn's request; ignored in a last turn. After a join:
    from the end of the last sub-agent joined."""
    gap_provenance: Provenance = Provenance.MEASURED
    prefixes: tuple[SharedPrefix, ...] = ()
    """What the prompt shares with prompts other than the previous one, of this program or of any
    other: its path in the prefix tree of all prompts, shortest first. Each prefix begins where the
    one before it ends, and does so in all prompts that name it. `traces.block_hashes` makes them of
    block hashes."""

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that were not in the previous turn's context."""
        return self.prompt_tokens - self.kept_tokens

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class Message(NamedTuple):
    """One message of a recorded conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a sub-agent hangs on its parent."""

    program_id: str
    """The parent."""
    after_turn: int
    """It starts when this turn of the parent has finished …"""
    delay_s: float = 0.0
    """… and so much later."""
    joined_before_turn: int | None = None
    """The parent's turn that waits for its end; None if nobody waits."""
    delay_provenance: Provenance = Provenance.INFERRED


@dataclass(frozen=True, slots=True)
class Program:
    """One agent task, or one sub-agent of it (`fork` set)."""

    id: str
    turns: Sequence[Turn]
    """A tuple, or `traces.packed.PackedTurns`."""
    prefix: SharedPrefix | None = None
    """What its first prompt shares with other programs, where that is one prefix of the same length
    in all of them, such as a system prompt. Otherwise None, and `Turn.prefixes` say it."""
    fork: Fork | None = None
    recorded_start_s: float | None = None
    """Start in the recording, seconds from the first program's, for `--arrivals recorded`."""
    source: str = ""
    """File or recipe it came from, for provenance and messages."""
    messages: tuple[Message, ...] = ()
    """The conversation verbatim, where it was asked for and recorded."""
    prompt_messages: tuple[int, ...] = ()
    """Of each turn: how many of these, from the first, are its prompt."""

    @property
    def peak_context_tokens(self) -> int:
        return max(turn.context_tokens for turn in self.turns)
