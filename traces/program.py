"""Programs of a trace: turns, tool gaps, and shared prefixes of prompts.

Loaders and recipes create programs; replay and reports use nothing else of a trace. Programs are
immutable, so that all variants of a sweep can share them. Times are in seconds, lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Provenance(StrEnum):
    """The origin of a duration."""

    MEASURED = "measured"
    INFERRED = "inferred"
    SYNTHESISED = "synthesised"
    UNSTATED = "unstated"
    """Not stated in the trace."""
    MEASURED_WITH_PERMISSION = "measured with waits for permission"
    """Measured until a tool's result, which may have waited for a person to permit the tool."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Leading tokens of a prompt, which are the same in all prompts with a prefix of this id.

    If the lengths differ, the shorter prefix is the first part of the longer one.
    """

    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One LLM request. Its context is its prompt followed by its output."""

    prompt_tokens: int
    """Length of the whole prompt."""
    output_tokens: int
    kept_tokens: int = 0
    """Number of leading prompt tokens that repeat the previous turn's context, and so can hit its
    KV (0 in a first turn; less than the previous context if the agent rewrote its history)."""
    tools: tuple[str, ...] = ()
    """Tools that the answer calls, in order (`servers.tool_names`)."""
    command: str | None = None
    """The command that the tool runs, if the trace records it. A replay never executes it."""
    tool_gap_s: float = 0.0
    """Time from this turn's response to the next turn's request. If the next turn waits for
    sub-agents, the time from the end of the last of them. Ignored in a last turn."""
    gap_provenance: Provenance = Provenance.UNSTATED
    prefixes: tuple[SharedPrefix, ...] = ()
    """Parts shared with prompts other than the previous one, in any program: the prompt's path in
    the prefix tree of all prompts, shortest first. Each prefix begins where the previous one ends,
    in all prompts that contain it. `traces.block_hashes` computes prefixes from block hashes."""

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
    """The place where a sub-agent starts in its parent, and where the parent waits for it."""

    program_id: str
    """Id of the parent."""
    after_turn: int
    """The parent's turn after which the sub-agent starts."""
    delay_s: float = 0.0
    """Time from the end of that turn to the start."""
    joined_before_turn: int | None = None
    """The parent's turn that waits for the sub-agent's end; None if no turn does."""
    delay_provenance: Provenance = Provenance.UNSTATED


@dataclass(frozen=True, slots=True)
class Program:
    """One agent task, or one sub-agent of it (`fork` set)."""

    id: str
    turns: Sequence[Turn]
    """A tuple, `traces.stored.PackedTurns`, or `traces.stored.StoredTurns`."""
    prefix: SharedPrefix | None = None
    """The part that its first prompt shares with other programs, if it has the same length in all
    of them, such as a system prompt. Otherwise None, and `Turn.prefixes` is used."""
    fork: Fork | None = None
    recorded_start_s: float | None = None
    """Recorded start in seconds after the first program's, for `--arrivals recorded`."""
    source: str = ""
    """The file or recipe of the program."""
    messages: tuple[Message, ...] = ()
    """The verbatim conversation, if it was requested and recorded."""
    prompt_messages: tuple[int, ...] = ()
    """For each turn, the number of leading messages that form its prompt."""
    inferred_tokens: bool = False
    """Whether token counts of its file are inferred, because it records text without counts or
    lacks some."""

    @property
    def first_prefixes(self) -> tuple[SharedPrefix, ...]:
        """The prefixes that the first prompt shares with other programs; () without turns."""
        if self.prefix is not None:
            return (self.prefix,)
        return self.turns[0].prefixes if self.turns else ()

    @property
    def prefix_ids(self) -> set[str]:
        """The ids of all prefixes that prompts share with other programs."""
        ids = {prefix.id for turn in self.turns for prefix in turn.prefixes}
        return ids if self.prefix is None else ids | {self.prefix.id}

    @property
    def peak_context_tokens(self) -> int:
        return max(turn.context_tokens for turn in self.turns)
