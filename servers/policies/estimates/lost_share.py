"""How often a tier has lost the context of a program when its next turn is scheduled.

The share is an exponential mean over the last returns of programs whose KV was not pinned. A
context counts as lost if less than half of it is cached: a tier stores whole chunks, and a client
may change the end of its history.

In: a policy's events, in tokens. Out: a share from 0 to 1. All methods take constant time.
"""

from __future__ import annotations

from servers.policies.base import Request
from servers.policies.estimates.recent import Recent

RETURNS = 128.0
"""The weight of a return in the mean falls by the factor e after this many others."""


class LostShare:
    def __init__(self) -> None:
        self.share = 0.0
        self._contexts: Recent[int] = Recent()
        """Tokens, by program that is between two turns."""

    def finished(self, program_id: str, context_tokens: int) -> None:
        self._contexts[program_id] = context_tokens

    def scheduled(self, request: Request, cached_tokens: int) -> None:
        context_tokens = self._contexts.pop(request.program_id)
        if context_tokens is None or request.pinned or request.preempted:
            return
        lost = 2 * cached_tokens < min(context_tokens, request.prompt_tokens)
        self.share += (lost - self.share) / RETURNS

    def ended(self, program_id: str) -> None:
        self._contexts.pop(program_id)
