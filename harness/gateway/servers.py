"""The servers behind a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.replay.identity import SessionEnd
from servers.policies.base import Costs


@dataclass(frozen=True, slots=True)
class Backend:
    """A server behind the gateway."""

    url: str
    """Base URL without `/v1`."""
    tagged: bool
    """Whether the server accepts `vllm_xargs`."""
    events: Path | None = None
    """The file to which the vLLM plug-in writes its events."""
    kv_tokens: int = 0
    """Tokens that fit into its KV memory; 0 if unknown."""
    session_ends: tuple[SessionEnd, ...] = ()
    """How it is told that a program has ended, besides by a tag."""
    costs: Costs | None = None
    """Times of its prefills and decode steps; None if unknown."""

    @property
    def root(self) -> str:
        return self.url
