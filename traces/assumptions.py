"""Values that a reader may assume if a file lacks them: token counts of text, and tool times.

`read_traces` creates it once for all files from the user's options. A format whose files may lack
one takes it as an argument of `load_with` (`traces.formats.registry.IncompleteFormat`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from servers.basics.errors import TraceRejected
from servers.basics.text import one_line
from traces.lenient import Repairs
from traces.program import Provenance
from traces.token_counts import TokenCounter, default_counter

GapSource = Callable[[str, Sequence[tuple[str, ...]]], list[float]]
"""Returns tool gaps in seconds for the id of a program and the tools of each of its turns."""
Gap = tuple[float, Provenance]
REMEDY = (
    "--synthesise-gaps RECIPE draws them, marked as synthesised, from a recipe such as swe-bench"
)
DRAWN = "a tool time that is not recorded: drawn from a recipe, synthesised"


@dataclass(frozen=True, slots=True)
class Assumptions:
    tokens: TokenCounter = field(default_factory=default_counter)
    gaps: GapSource | None = None
    """Source of unrecorded tool gaps, if the user named one."""

    def complete_gaps(
        self,
        program_id: str,
        tools: Sequence[tuple[str, ...]],
        gaps: Sequence[Gap | None],
        repairs: Repairs,
    ) -> list[Gap]:
        """Return the gaps after each turn, with unknown gaps (None) drawn. The last one is ignored.
        Raises TraceRejected if one is unknown and the user did not ask for synthesised gaps, since
        a replay without the tool's time would be wrong.
        """
        known = [*gaps[:-1], (0.0, Provenance.MEASURED)]
        if all(gap is not None for gap in known):
            return [gap for gap in known if gap is not None]
        if self.gaps is None:
            missing = sum(gap is None for gap in known)
            raise TraceRejected(f"{missing} of {len(known) - 1} tool times not recorded; {REMEDY}")
        drawn = self.gaps(program_id, tools)
        complete: list[Gap] = []
        for gap, names, gap_s in zip(known, tools, drawn, strict=True):
            if gap is None:
                repairs.add(
                    DRAWN
                    if names
                    else "a pause before the next message that is not recorded: 0 s, synthesised"
                )
            complete.append(gap or (gap_s if names else 0.0, Provenance.SYNTHESISED))
        return complete


def unused_recipe(recipe: str | None, repairs: Iterable[str]) -> list[str]:
    """Return a sentence if, according to the repairs, `--synthesise-gaps` drew no tool time; none
    without the option."""
    if recipe is None or any(reason.startswith(DRAWN) for reason in repairs):
        return []
    return [f"--synthesise-gaps {one_line(recipe)} has no effect: no tool time had to be drawn"]
