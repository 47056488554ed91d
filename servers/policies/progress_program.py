"""A program as Progress-TTL counts it (`servers.policies.progress_ttl`)."""

from __future__ import annotations

import math

PROGRAM_TOKENS = 100
"""Tokens that are added for each program, for its next output."""
CONTINUOUS = 0.9
"""Share of the previous prompt that must be cached for a turn to count as a round."""


class Program:
    def __init__(self) -> None:
        self.active = False
        self.open_turns = 0
        """Number of turns that wait or run; 0 while it acts."""
        self.context = 0
        """Prompt tokens; they shrink only after two turns with fewer."""
        self.shrinks = 0
        self.shared = 0
        self.last_prompt = 0
        """Prompt tokens of the last turn that finished; 0 before the first."""
        self.last_finished_s = -1.0
        self.last_impact_s = 0.0
        """Seconds that a rebuild of the last turn's prompt costs."""
        self.rounds = 0
        """Rounds since its admission."""
        self.rounds_since_expiry = 0
        self.segment_since_s = -1.0
        self.expires_s = math.inf
        """When it is paused, while it acts."""
        self.leaves = False
        """Whether it is paused at the end of its turn."""
        self.yielded = False
        """Whether it was paused after the most rounds."""
        self.last_turn = -1
        """Id of the turn that finished last."""
        self.cached = 0
        self.starts = False
        """Whether the running turn is the first since its admission."""
        self.scheduled_s = 0.0

    @property
    def tokens(self) -> int:
        return max(self.context - self.shared, 0) + PROGRAM_TOKENS

    def arrived(self, prompt_tokens: int) -> None:
        if prompt_tokens >= self.context:
            self.context, self.shrinks = prompt_tokens, 0
        self.open_turns += 1
        self.expires_s = math.inf

    def scheduled(self, cached_tokens: int, now_s: float) -> None:
        """Record the start of a turn, before the program becomes active."""
        self.cached, self.starts, self.scheduled_s = cached_tokens, not self.active, now_s

    def finished(self, prompt: int, impact_s: float, now_s: float) -> int:
        """Record the end of a turn. Return how many tokens its prompt has grown since the last one;
        0 if there was none, or if it shrank or more than doubled."""
        last = self.last_prompt
        continuous = not last or self.cached >= CONTINUOUS * last
        if self.starts and (not last or not continuous):
            self.segment_since_s = self.scheduled_s
        if not last:
            self.shared = self.cached
        self.open_turns -= 1
        self.shrinks += 1
        if prompt >= self.context or self.shrinks == 2:
            self.context, self.shrinks = prompt, 0
        self.starts, self.last_prompt = False, prompt
        self.last_impact_s, self.last_finished_s = impact_s, now_s
        self.rounds += continuous
        self.rounds_since_expiry += continuous
        return prompt - last if last < prompt < 2 * last else 0

    def served_s(self, now_s: float, mean_prompt: float) -> float:
        """Return the seconds since its segment began, more for a small prompt, and half for a large
        one."""
        prompt = self.context if self.open_turns else self.last_prompt
        relative = max(prompt / max(mean_prompt, 1.0), 1e-6)
        since_s = self.segment_since_s if self.segment_since_s >= 0 else now_s
        return (now_s - since_s) * max(1 / math.sqrt(relative), 0.5)
