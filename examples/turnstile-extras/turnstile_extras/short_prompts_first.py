"""The shortest prompt first. Imports the standard library and `servers.policies` only, so that the
policy also runs inside vLLM."""

from __future__ import annotations

from servers.policies.base import FREE, Costs, Policy, Rank, Request, Retention, pin


class ShortPromptsFirst(Policy):
    """The shortest prompt goes first; KV is held for hold_s seconds after each tool call."""

    name = "short-prompts-first"
    source = "an example"

    def __init__(self, costs: Costs, *, hold_s: float = 1.0) -> None:
        super().__init__(costs)
        self.hold_s = hold_s

    def rank(self, request: Request, now_s: float) -> Rank:
        return (not request.preempted, request.prompt_tokens, request.id)

    def finished(self, request: Request, now_s: float) -> Retention:
        return FREE if request.ends_program else pin(self.hold_s, tool=request.tool)
