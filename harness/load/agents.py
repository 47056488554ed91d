"""Draws the jobs of agents, each of which starts a new job when its last one has ended.

In: the jobs of a seed, a number of agents. Out: jobs with the times at which they start. All
variants of a seed have the same jobs in the same order. The first job of each agent begins at a
random turn, as if the agents had been at work before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from numpy.random import Generator

from harness.load.arrivals import rng_for
from harness.load.stream import ArrivingJob, DrawnJobs, Members
from servers.basics.clock import PS_PER_S
from traces import Program
from traces.cut import parents_first

THINK_TIMES = 1024
"""Number of think times drawn at once."""


@dataclass(frozen=True, slots=True)
class AgentJobs:
    drawn: DrawnJobs
    agents: int
    think_s: float
    """Mean time from the end of an agent's job to the start of its next one."""
    idle_jct_s: float
    """Mean JCT on an idle machine. The agents start their first jobs within this and a think time,
    so that their prompts, which are long, do not come at once."""

    def __iter__(self) -> Iterator[ArrivingJob]:
        """Yield the first job of each agent, in order of time, then jobs whose `at_ps` is the
        think time before them."""
        rng = rng_for(self.drawn.seed, "agents")
        starts_s = sorted((rng.random(self.agents) * (self.idle_jct_s + self.think_s)).tolist())
        think_s = _think_times(self.think_s, rng_for(self.drawn.seed, "think"))
        for index, members, left_out in self.drawn.fitting():
            if index < self.agents:
                turn = int(rng.integers(len(members[0].turns)))
                at_s, members = starts_s[index], from_turn(members, turn)
            else:
                at_s = next(think_s)
            yield ArrivingJob(index, members, round(at_s * PS_PER_S), left_out)


def _think_times(mean_s: float, rng: Generator) -> Iterator[float]:
    while True:
        yield from (rng.standard_exponential(THINK_TIMES) * mean_s).tolist()


def from_turn(members: Members, turn: int) -> Members:
    """Return a job without the turns of its root before `turn`, and without the sub-agents that
    started before it and their descendants. Its first prompt contains the
    turns that are left out, and hits none of them."""
    root = members[0]
    first, *later = root.turns[turn:]
    kept: dict[str, Program] = {
        root.id: replace(root, turns=(replace(first, kept_tokens=0), *later), messages=())
    }
    for program in parents_first(members):
        fork = program.fork
        if fork is None or fork.program_id not in kept:
            continue
        if fork.program_id == root.id:
            if fork.after_turn < turn:
                continue
            joined = fork.joined_before_turn
            fork = replace(
                fork,
                after_turn=fork.after_turn - turn,
                joined_before_turn=None if joined is None else joined - turn,
            )
        kept[program.id] = replace(program, fork=fork)
    return tuple(kept.values())
