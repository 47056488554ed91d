"""A program (job) as a trace records it: turns, tool gaps, and what prompts share.

Loaders and recipes make programs; replay and reports read nothing else of a trace. They are frozen,
so that all variants of a sweep can use one list. Times in seconds, lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Provenance(StrEnum):
    """How a duration is known."""

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
    """The command that the tool runs, if the trace records it. A replay never executes it."""
    tool_gap_s: float = 0.0
    """From this turn's response to the next turn's request, or, if that waits for sub-agents, from
    the end of the last of them. Ignored in a last turn."""
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
    """Where a sub-agent starts in its parent, and where the parent waits for it."""

    program_id: str
    """The parent."""
    after_turn: int
    """The turn of the parent after which it starts."""
    delay_s: float = 0.0
    """From the end of that turn to its start."""
    joined_before_turn: int | None = None
    """The parent's turn that waits for its end; None if no turn does."""
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
    """The file or recipe it came from, for provenance and messages."""
    messages: tuple[Message, ...] = ()
    """The conversation verbatim, if it was requested and recorded."""
    prompt_messages: tuple[int, ...] = ()
    """For each turn, how many of these messages, from the first, are its prompt."""

    @property
    def peak_context_tokens(self) -> int:
        return max(turn.context_tokens for turn in self.turns)
