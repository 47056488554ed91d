"""Says what a workload is, and how it compares with recorded agents.

In: the workload of `sweep.json`. Out: a sentence. The figures of recorded agents are those in the
recipes that are fitted to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from traces.synthesis.known import fitted_recipe, shipped

QUANTITIES = {
    "turns": "turns",
    "new_tokens_per_later_turn": "new tokens per later turn",
    "tool_gap_s": "gap after a tool",
}
"""The quantities of a fitted recipe that are compared, by the names of `sweep.json`."""


def compared_with_agents(workload: Mapping[str, Any]) -> str:
    """Return the sentence; an empty one if the jobs are not known before the run."""
    means = workload.get("means") or {}
    if any(name not in means for name in QUANTITIES):
        return ""
    about = workload.get("about")
    what = f"The workload is {about}: jobs" if about else "Jobs"
    others = [
        f"{name} {real['turns']:.0f}, {real['new_tokens_per_later_turn']:,.0f} and "
        f"{_seconds(real['tool_gap_s'])}"
        for name, real in recorded_agents().items()
    ]
    return (
        f"{what} have {means['turns']:.0f} turns on average, later turns add "
        f"{means['new_tokens_per_later_turn']:,.0f} tokens, and tools take "
        f"{_seconds(means['tool_gap_s'])}; recorded agents: {'; '.join(others)}."
    )


@cache
def recorded_agents() -> dict[str, dict[str, float]]:
    """Return the means of the sets to which the shipped recipes are fitted, by recipe."""
    return {
        name: {key: figures[quantity].mean for key, quantity in QUANTITIES.items()}
        for name in reversed(shipped())
        if (figures := fitted_recipe(name).figures)
    }


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
