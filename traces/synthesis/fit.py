"""Fits a recipe to a set of programs, of any format. In: programs. Out: a `FittedRecipe`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
from pydantic import ValidationError

from servers.basics.errors import InvalidTrace
from servers.basics.text import first_error, requirement
from traces.program import Program, Turn
from traces.synthesis.draw_turns import TurnDraws
from traces.synthesis.figures import figures
from traces.synthesis.fit_series import Step, case_of, fit_series
from traces.synthesis.fitted import (
    NO_TOOL,
    Cases,
    CommonPrefix,
    FittedRecipe,
    Forks,
    History,
    Origin,
    ProgramKind,
    ToolSteps,
)
from traces.synthesis.quantiles import AT, fit_quantiles

MIN_TOOL_SHARE = 0.01
"""Tools with a smaller share of the steps are pooled as `OTHER`."""
OTHER = "other"
COMPACTED = 0.9
"""A compaction leaves at most this part of a context."""
NEAR = 0.7
"""Programs whose contexts reach this part of the longest context come near it."""
MAX_SHARED_PREFIXES = 20
GROWTH_ROUNDS = 6
GROWTH_PROGRAMS, GROWTH_TURNS = 500, 50_000
"""Number of programs that a round draws, and the limit of their turns in total."""


def fit(programs: Sequence[Program], name: str, description: str, origin: Origin) -> FittedRecipe:
    """Fit a recipe. Raises InvalidTrace if no job has two turns, or if they exceed the limits of a
    recipe."""
    jobs = [program for program in programs if program.fork is None]
    if max((len(job.turns) for job in jobs), default=0) < 2:
        raise InvalidTrace(
            "no program has two turns, so there are no steps to fit; add longer ones"
        )
    try:
        return _fit(programs, jobs, name, description, origin)
    except ValidationError as error:
        problem = requirement(first_error(error)[1]["msg"])
        raise InvalidTrace(f"the programs cannot be fitted: {problem}") from None


def _fit(
    programs: Sequence[Program],
    jobs: Sequence[Program],
    name: str,
    description: str,
    origin: Origin,
) -> FittedRecipe:
    parents = {program.fork.program_id for program in programs if program.fork is not None}
    with_agents = [job for job in jobs if job.id in parents]
    plain = [job for job in jobs if job.id not in parents]
    kinds: dict[str, ProgramKind] = {}
    if plain:
        kinds["plain"] = fit_kind(plain)
    if with_agents:
        forks = _forks(with_agents, programs)
        kinds["with-sub-agents"] = fit_kind(with_agents).model_copy(update={"forks": forks})
    return FittedRecipe(
        format="turnstile-recipe-1",
        name=name,
        description=description,
        origin=origin,
        quantiles=AT,
        shared_prefixes=_shared_prefixes(jobs),
        jobs=kinds,
        figures=figures(programs),
    )


def fit_kind(programs: Sequence[Program]) -> ProgramKind:
    steps = _steps(programs)
    by_tool = _grouped(steps, lambda step: step.tool)
    series = fit_series(programs, steps)
    longest = np.array([program.peak_context_tokens for program in programs])
    near = NEAR * longest.max()
    kind = ProgramKind(
        programs=len(programs),
        turns=fit_quantiles([len(p.turns) for p in programs]),
        first_prompt_tokens=fit_quantiles([p.turns[0].prompt_tokens for p in programs]),
        last_output_tokens=fit_quantiles([p.turns[-1].output_tokens for p in programs]),
        limit_tokens=fit_quantiles(longest[longest >= near]),
        level_correlation=series.levels,
        step_correlation=series.steps,
        series=series.series,
        history=_history(steps, near),
        tools={tool: _tool(tool, by_tool[tool], steps) for tool in by_tool},
    )
    return _with_growth(kind, sum(s.after.new_tokens for s in steps if s.case != "rewritten"))


def _with_growth(kind: ProgramKind, new_tokens: int) -> ProgramKind:
    """Return the kind with the `growth` that gives its programs the set's number of new tokens."""
    growth, mean_turns = 1.0, max(float(np.trapezoid(kind.turns, AT)), 1.0)
    count = min(GROWTH_PROGRAMS, math.ceil(GROWTH_TURNS / mean_turns))
    for _ in range(GROWTH_ROUNDS):
        kind = kind.model_copy(update={"growth": round(growth, 3)})
        programs = TurnDraws(kind).draw(count, np.random.default_rng(0))
        drawn = sum(
            after.new_tokens
            for turns in programs
            for before, after in pairwise(turns)
            if case_of(before, after) != "rewritten"
        )
        if not drawn:
            break
        growth *= new_tokens / kind.programs / (drawn / count)
        growth = min(max(growth, 0.5), 2.0)
    return kind


def _compacts(step: Step, near: float) -> bool:
    long = step.before.context_tokens >= near
    return long and step.case == "rewritten" and step.ratio <= COMPACTED


def _steps(programs: Sequence[Program]) -> list[Step]:
    """Return the steps of all programs in order. Rare tools have the name OTHER."""
    called = Counter(_first_tool(turn) for p in programs for turn in p.turns[:-1])
    least = MIN_TOOL_SHARE * called.total()
    return [
        Step(
            number,
            index,
            tool if called[tool := _first_tool(before)] >= least else OTHER,
            case_of(before, after),
            before,
            after,
        )
        for number, program in enumerate(programs)
        for index, (before, after) in enumerate(pairwise(program.turns))
    ]


def _first_tool(turn: Turn) -> str:
    return turn.tools[0] if turn.tools else NO_TOOL


def _grouped(steps: Iterable[Step], key: Callable[[Step], str]) -> dict[str, list[Step]]:
    """Return the steps by key, the most frequent key first."""
    groups: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        groups[key(step)].append(step)
    return dict(sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])))


def _tool(tool: str, steps: Sequence[Step], all_steps: Sequence[Step]) -> ToolSteps:
    following = Counter(
        b.tool for a, b in pairwise(all_steps) if a.tool == tool and b.index == a.index + 1
    )
    appended = [step for step in steps if step.case == "appended"] or steps
    return ToolSteps(
        first=sum(step.index == 0 for step in steps),
        next=dict(following.most_common()),
        output_tokens=fit_quantiles([step.before.output_tokens for step in steps]),
        gap_s=fit_quantiles([step.before.tool_gap_s for step in steps]),
        new_tokens=fit_quantiles([step.after.new_tokens for step in appended]),
    )


def _history(steps: Sequence[Step], near: float) -> History:
    compactions = [step for step in steps if _compacts(step, near)]
    steps = [step for step in steps if not _compacts(step, near)]

    def cases(chosen: Iterable[Step]) -> Cases:
        return Cases(**Counter(step.case for step in chosen))

    by_case = _grouped(steps, lambda step: step.case)
    tables: dict[str, tuple[float, ...]] = {}
    if dropped := by_case.get("answer_dropped"):
        tables["answer_dropped_new_tokens"] = fit_quantiles([s.after.new_tokens for s in dropped])
    if edited := by_case.get("edited"):
        lost = [s.before.context_tokens - s.after.kept_tokens for s in edited]
        tables["edited_lost_tokens"] = fit_quantiles(lost)
        tables["edited_new_tokens"] = fit_quantiles([s.after.new_tokens for s in edited])
    if rewritten := by_case.get("rewritten"):
        tables["rewritten_prompt_ratio"] = fit_quantiles([s.ratio for s in rewritten])
    if compactions:
        tables["compacted_prompt_ratio"] = fit_quantiles([s.ratio for s in compactions])
    if rewritten := [*by_case.get("rewritten", ()), *compactions]:
        tables["rewritten_kept_tokens"] = fit_quantiles([s.after.kept_tokens for s in rewritten])
    return History(
        first=cases(s for s in steps if s.index == 0),
        tool=cases(s for s in steps if s.index and s.tool != NO_TOOL),
        pause=cases(s for s in steps if s.index and s.tool == NO_TOOL),
        **tables,
    )


def _shared_prefixes(jobs: Sequence[Program]) -> tuple[CommonPrefix, ...]:
    """Return the prefixes with which several jobs begin. A job counts for the longest prefix of its
    path that other jobs share."""
    users: dict[str, list[int]] = defaultdict(list)
    for job in jobs:
        for prefix in job.first_prefixes:
            users[prefix.id].append(prefix.tokens)
    common = {id: min(tokens) for id, tokens in users.items() if len(tokens) > 1}
    used = Counter(
        ids[-1] for job in jobs if (ids := [p.id for p in job.first_prefixes if p.id in common])
    )
    return tuple(
        CommonPrefix(tokens=common[id], jobs=count)
        for id, count in used.most_common(MAX_SHARED_PREFIXES)
    )


def _forks(jobs: Sequence[Program], programs: Sequence[Program]) -> Forks:
    """Describe the sub-agents of the jobs. Sub-agents of sub-agents are left out."""
    turns = {job.id: len(job.turns) for job in jobs}
    of_jobs = [(p, p.fork) for p in programs if p.fork is not None and p.fork.program_id in turns]
    sizes = Counter((fork.program_id, fork.after_turn) for _, fork in of_jobs)
    groups = Counter(job for job, _ in sizes)
    places = [after / max(turns[job] - 2, 1) for job, after in sizes]
    shared = Counter(p.id for program, _ in of_jobs for p in program.first_prefixes)
    lengths = [
        p.tokens for program, _ in of_jobs for p in program.first_prefixes if shared[p.id] > 1
    ]
    return Forks(
        groups=tuple(sorted(groups.values())),
        group_sizes=tuple(sorted(sizes.values())),
        position=fit_quantiles(np.clip(places, 0, 1)),
        delay_s=fit_quantiles([fork.delay_s for _, fork in of_jobs]),
        joined=_share(fork.joined_before_turn is not None for _, fork in of_jobs),
        shared_prefix_tokens=round(np.median(lengths)) if lengths else 0,
        sub_agent=fit_kind([program for program, _ in of_jobs]),
    )


def _share(cases: Iterable[bool]) -> float:
    counts = Counter(cases)
    return round(counts[True] / counts.total(), 3)
