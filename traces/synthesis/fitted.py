"""The figures of a recipe that is fitted to a set of programs.

A `Table` has the values of a distribution at the probabilities of `FittedRecipe.quantiles`. Times
are in seconds, lengths in tokens. A *step* leads from a turn to the next one: the turn's output,
the tool that it calls, the gap, and the next turn's new tokens. `docs/reference/workloads.md`
describes the model, `traces.synthesis.fit` fits it, and `traces.synthesis.draw` draws programs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from traces.lenient import MAX_GAP_S, MAX_TOKENS
from traces.synthesis.quantiles import AT

MAX_TURNS = 10_000
NO_TOOL = "none"
"""The name of steps after a turn that calls no tool."""
LEVELS = ("turns", "first_prompt", "output", "gap", "new")
"""Quantities correlated among programs. `output`, `gap` and `new` are a program's levels."""
SERIES = ("output", "gap", "new")
"""Quantities drawn for each step."""
EARLY = (0, 1, 2, 3, 6, 11)
"""The first step of each range of `Series.early`. The last range has no end."""


def _ascending(values: tuple[float, ...]) -> tuple[float, ...]:
    if len(values) != len(AT) or any(a > b for a, b in pairwise(values)):
        raise ValueError(f"must be {len(AT)} values in ascending order")
    return values


def _correlations(rows: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    if any(len(row) != len(rows) or row[i] != 1 for i, row in enumerate(rows)):
        raise ValueError("must have as many columns as rows, and 1 on the diagonal")
    matrix = np.array(rows)
    if not np.allclose(matrix, matrix.T) or np.linalg.eigvalsh(matrix)[0] <= 0:
        raise ValueError("must be symmetric and positive definite")
    return rows


Count = Annotated[int, Field(ge=0, le=10**9)]
Counts = Annotated[tuple[Annotated[int, Field(ge=1, le=100)], ...], Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Table = Annotated[tuple[Annotated[float, Field(ge=0)], ...], AfterValidator(_ascending)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Correlation = Annotated[
    tuple[tuple[Annotated[float, Field(ge=-1, le=1)], ...], ...], AfterValidator(_correlations)
]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Origin(_Frozen):
    """The set from which the figures come."""

    set: str
    licence: str
    fitted: str
    """The date."""
    programs: Count
    sub_agents: Count
    turns: Count
    gaps: dict[str, Count]
    """Number of gaps by provenance."""
    trace_sha256: str


class ToolSteps(_Frozen):
    """The steps after turns that call one tool."""

    first: Count
    """Number of programs whose first turn calls it."""
    next: dict[str, Count]
    """How often each tool follows."""
    output_tokens: Table
    gap_s: Table
    new_tokens: Table
    """New tokens of the next turn, if it repeats the whole context before it."""


class Series(_Frozen):
    """How the steps of a program depend on each other in one quantity, on a normal scale, apart
    from their tools. The rest of the variance is independent."""

    program: Share
    """The part of the variance that all steps of a program share."""
    neighbours: Share
    """The part that neighbouring steps share."""
    decay: Annotated[float, Field(ge=0, lt=1)]
    """The correlation of this part from one step to the next."""
    early: Annotated[tuple[float, ...], Field(min_length=len(EARLY), max_length=len(EARLY))]
    """Means of the steps in the ranges of `EARLY`, in standard deviations."""


class Cases(_Frozen):
    """How often the next prompt repeats …"""

    appended: Count = 0
    """the whole context, prompt and answer,"""
    answer_dropped: Count = 0
    """the prompt without the answer, such as a model's reasoning,"""
    edited: Count = 0
    """most of the prompt,"""
    rewritten: Count = 0
    """or less than half of it: the history was compacted, or changed near its beginning."""


class History(_Frozen):
    first: Cases
    """After the first turn."""
    tool: Cases
    """After later turns that call a tool."""
    pause: Cases
    """After later turns that call no tool."""
    answer_dropped_new_tokens: Table | None = None
    edited_lost_tokens: Table | None = None
    """Ratios to the previous context."""
    edited_new_tokens: Table | None = None
    rewritten_kept_tokens: Table | None = None
    rewritten_prompt_ratio: Table | None = None
    """The next prompt / the previous context."""
    compacted_prompt_ratio: Table | None = None
    """The same after a context at the program's limit. Such cases are not counted above."""

    @model_validator(mode="after")
    def _has_its_tables(self) -> History:
        for case in ("answer_dropped", "edited", "rewritten"):
            happens = any(getattr(c, case) for c in (self.first, self.tool, self.pause))
            tables = [n for n in type(self).model_fields if n.startswith(f"{case}_")]
            if missing := [n for n in tables if happens and getattr(self, n) is None]:
                raise ValueError(f"{missing[0]} is missing; add it, or set {case} to 0")
        return self


class ProgramKind(_Frozen):
    """Programs of one kind: jobs, or their sub-agents."""

    programs: Count
    turns: Table
    first_prompt_tokens: Table
    last_output_tokens: Table
    limit_tokens: Table
    """The longest contexts of the programs that came near the longest one. A program has one of
    them as its limit, at which it compacts its history. If the set's programs never do, new tokens
    are scaled so that the context stays below the limit,"""
    growth: Annotated[float, Field(gt=0, le=10)] = 1.0
    """and all new tokens are multiplied by this, so that their mean stays the set's."""
    level_correlation: Correlation
    """Correlations among programs, in the order of `LEVELS`."""
    step_correlation: Correlation
    """Correlations within a step, in the order of `SERIES`."""
    series: dict[str, Series]
    """Series by the names in `SERIES`."""
    history: History
    tools: dict[str, ToolSteps]
    forks: Forks | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> ProgramKind:
        if not 1 <= self.turns[0] <= self.turns[-1] <= MAX_TURNS:
            raise ValueError(f"turns must be 1 to {MAX_TURNS:,}")
        if len(self.level_correlation) != len(LEVELS) or len(self.step_correlation) != len(SERIES):
            raise ValueError(f"correlations must have {len(LEVELS)} and {len(SERIES)} rows")
        if set(self.series) != set(SERIES):
            raise ValueError(f"series must be {', '.join(SERIES)}")
        if self.turns[-1] > 1 and not any(tool.first for tool in self.tools.values()):
            raise ValueError("tools: one of them must be first in some program")
        self._check_lengths()
        for name, tool in self.tools.items():
            if unknown := [other for other in tool.next if other not in self.tools]:
                raise ValueError(f"tools.{name}.next names {unknown[0]}, which tools lacks")
        return self

    def _check_lengths(self) -> None:
        history = self.history
        new = [t.new_tokens for t in self.tools.values()]
        new += filter(None, (history.answer_dropped_new_tokens, history.edited_new_tokens))
        output = [t.output_tokens for t in self.tools.values()] + [self.last_output_tokens]
        step = self.growth * max((table[-1] for table in new), default=0)
        step += max(table[-1] for table in output)
        start = max(self.first_prompt_tokens[-1], self.limit_tokens[-1])
        if start + self.turns[-1] * step > MAX_TOKENS:
            raise ValueError(f"contexts could exceed {MAX_TOKENS:,} tokens; lower turns or tokens")
        if any(tool.gap_s[-1] > MAX_GAP_S for tool in self.tools.values()):
            raise ValueError(f"a gap_s exceeds {MAX_GAP_S:,.0f} seconds")


class CommonPrefix(_Frozen):
    """Tokens with which several jobs begin."""

    tokens: Tokens
    jobs: Count


class Forks(_Frozen):
    """When jobs start sub-agents."""

    groups: Counts
    """For each job, the number of turns after which sub-agents start."""
    group_sizes: Counts
    """For each of these turns, the number of sub-agents that start."""
    position: Table
    """The position of these turns in their programs: 0 is the first turn, 1 the last but one."""
    delay_s: Table
    joined: Share
    """The share of sub-agents for which the next turn waits."""
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    """The prefix that the prompts of a job's sub-agents share."""
    sub_agent: ProgramKind


class FittedQuantity(_Frozen):
    """One quantity of the set. The quantiles are at `traces.synthesis.figures.AT`."""

    count: Count
    mean: float
    sd: float
    quantiles: tuple[float, ...]


class FittedRecipe(_Frozen):
    format: Literal["turnstile-recipe-1"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,60}$")]
    description: str
    origin: Origin
    quantiles: Table
    """The probabilities of every table."""
    shared_prefixes: tuple[CommonPrefix, ...] = ()
    jobs: Annotated[dict[str, ProgramKind], Field(min_length=1)]
    """Jobs that start sub-agents and jobs that do not, if the set has both."""
    figures: dict[str, FittedQuantity]
    """The set's own figures, with which drawn programs are compared."""

    @model_validator(mode="after")
    def _uses_the_probabilities(self) -> FittedRecipe:
        if self.quantiles != tuple(map(float, AT)):
            raise ValueError(f"quantiles must be {', '.join(f'{p:g}' for p in AT)}")
        if not any(kind.programs for kind in self.jobs.values()):
            raise ValueError("jobs: one kind must have programs")
        return self
