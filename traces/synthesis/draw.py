"""Draws programs of a fitted recipe. In: a recipe, the number of jobs, an rng. Out: programs.

A job is followed by its sub-agents. Times are in seconds, lengths in tokens; all gaps are
synthesised. The numbers of turns are stratified (one from each of n slices of equal probability),
so that a hundred jobs already have nearly the recipe's mean.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from traces.program import Fork, Program, Provenance, SharedPrefix, Turn
from traces.synthesis.distributions import stratified
from traces.synthesis.draw_turns import TurnDraws
from traces.synthesis.fitted import FittedRecipe, Forks, ProgramKind
from traces.synthesis.quantiles import AT
from traces.synthesis.recipes import SOURCE


class ProgramDraws:
    """Draws programs of one recipe, as often as needed."""

    def __init__(self, recipe: FittedRecipe) -> None:
        self._recipe = recipe
        self._kinds = [_KindDraws(kind) for kind in recipe.jobs.values()]
        counts = [kind.programs for kind in recipe.jobs.values()]
        self._kind_shares = np.cumsum(counts)[:-1] / sum(counts)
        self._prefix_shares = list(
            accumulate(prefix.jobs / sum(counts) for prefix in recipe.shared_prefixes)
        )

    def draw(self, jobs: int, rng: np.random.Generator) -> list[Program]:
        """Return `jobs` jobs with their sub-agents."""
        name, programs = self._recipe.name, list[Program]()
        kinds = np.searchsorted(self._kind_shares, stratified(jobs, rng), side="right").tolist()
        counts = Counter(kinds)
        turns_of = {
            kind: iter(self._kinds[kind].jobs.draw(counts[kind], rng)) for kind in sorted(counts)
        }
        source = f"{SOURCE} {name}, fitted to {self._recipe.origin.set}"
        width = max(4, len(str(jobs - 1)))
        for number, kind in enumerate(kinds):
            turns = next(turns_of[kind])
            prefix = self._shared_prefix(turns, rng)
            programs.append(Program(f"{name}-{number:0{width}}", turns, prefix, source=source))
            programs += self._kinds[kind].sub_agents_of(programs[-1], rng)
        return programs

    def _shared_prefix(
        self, turns: Sequence[Turn], rng: np.random.Generator
    ) -> SharedPrefix | None:
        number = bisect_right(self._prefix_shares, rng.random()) if self._prefix_shares else 0
        if number == len(self._prefix_shares):
            return None
        prefix = self._recipe.shared_prefixes[number]
        tokens = min(prefix.tokens, *(turn.prompt_tokens - 1 for turn in turns))
        # The id contains the length, since a prefix has one length wherever its id is used.
        id = f"{self._recipe.name}:system-{number}:{tokens}"
        return SharedPrefix(id, tokens) if tokens > 0 else None


class _KindDraws:
    """Draws jobs of one kind, and sub-agents for them."""

    def __init__(self, kind: ProgramKind) -> None:
        self.jobs = TurnDraws(kind)
        self._forks = kind.forks
        self._sub_agents = TurnDraws(kind.forks.sub_agent) if kind.forks else None

    def sub_agents_of(self, job: Program, rng: np.random.Generator) -> Iterator[Program]:
        forks = self._forks
        if forks is None or self._sub_agents is None or len(job.turns) < 2:
            return
        places = np.interp(rng.random(int(rng.choice(forks.groups))), AT, forks.position)
        starts = [
            turn
            for turn in sorted(set(np.rint(places * (len(job.turns) - 2)).astype(int).tolist()))
            for _ in range(int(rng.choice(forks.group_sizes)))
        ]
        drawn = self._sub_agents.draw(len(starts), rng)
        delays_s = np.interp(rng.random(len(starts)), AT, forks.delay_s).round(3).tolist()
        prefix = _common_prefix(job.id, forks, drawn)
        for number, (start, turns, delay_s) in enumerate(
            zip(starts, drawn, delays_s, strict=True), 1
        ):
            joined = start + 1 if rng.random() < forks.joined else None
            fork = Fork(job.id, start, delay_s, joined, Provenance.SYNTHESISED)
            yield Program(f"{job.id}/agent-{number}", turns, prefix, fork, source=job.source)


def _common_prefix(
    job: str, forks: Forks, sub_agents: Sequence[Sequence[Turn]]
) -> SharedPrefix | None:
    shortest = min(turn.prompt_tokens for turns in sub_agents for turn in turns)
    tokens = min(forks.shared_prefix_tokens, shortest - 1)
    return SharedPrefix(f"{job}:sub-agents", tokens) if tokens > 0 and len(sub_agents) > 1 else None
