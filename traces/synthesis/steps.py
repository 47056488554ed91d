"""Steps of programs: from a turn to the next one."""

from __future__ import annotations

from dataclasses import dataclass

from traces.program import Turn

REWRITTEN = 0.5
"""If the next prompt repeats less than this part of the previous one, the history was rewritten."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step from a turn to the next one."""

    program: int
    index: int
    tool: str
    case: str
    before: Turn
    after: Turn

    @property
    def values(self) -> dict[str, float]:
        """Values by the names in `fitted.SERIES`."""
        return {
            "output": self.before.output_tokens,
            "gap": self.before.tool_gap_s,
            "new": self.after.new_tokens,
        }

    @property
    def ratio(self) -> float:
        return self.after.prompt_tokens / self.before.context_tokens


def case_of(before: Turn, after: Turn) -> str:
    """Return the field of `Cases` that the step counts for."""
    if after.kept_tokens == before.context_tokens:
        return "appended"
    if after.kept_tokens == before.prompt_tokens:
        return "answer_dropped"
    return "edited" if after.kept_tokens >= REWRITTEN * before.prompt_tokens else "rewritten"
