"""Describes a trace, and the packs to compare it with.

In: a `TraceSet`. Out: its programs, statistics and figures, and the same for each pack, the nearest
first. Times are in seconds, lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath

from traces import Program, TraceSet, read_traces
from traces.reuse import Reuse, reuse
from traces.stats import Statistics, statistics
from traces.synthesis.figures import figures
from traces.synthesis.fitted import FittedQuantity
from traces.synthesis.known import RECIPES, description
from traces.synthesis.nearest import nearest, reference

THIS = "this trace"
"""The name of the described trace on the page."""


@dataclass(frozen=True, slots=True)
class Described:
    """A trace, or a pack."""

    name: str
    programs: Sequence[Program]
    figures: Mapping[str, FittedQuantity]
    """Figures of jobs without sub-agents. A fitted recipe has its recorded set's."""
    reuse: Reuse
    about: str = ""
    distance: float | None = None
    """Distance of a pack from the trace; None if they cannot be compared."""

    @property
    def jobs(self) -> list[Program]:
        return [program for program in self.programs if program.fork is None]

    @property
    def sub_agents(self) -> list[Program]:
        return [program for program in self.programs if program.fork is not None]


@dataclass(frozen=True, slots=True)
class Compared:
    trace: Described
    statistics: Statistics
    packs: Sequence[Described]
    """The nearest first."""

    @property
    def all(self) -> list[Described]:
        return [self.trace, *self.packs]


def compared(loaded: TraceSet) -> Compared:
    """Describe a trace without its paths."""
    programs = [_without_folders(program) for program in loaded.programs]
    trace = Described(THIS, programs, figures(programs), reuse(programs))
    distances = {likeness.recipe: likeness.distance for likeness in nearest(programs)}
    names = sorted(RECIPES, key=lambda name: distances.get(name, 1.0))
    packs = [replace(_pack(name), distance=distances.get(name)) for name in names]
    return Compared(trace, statistics(programs), packs)


@cache
def _pack(name: str) -> Described:
    programs = read_traces(name).programs
    return Described(name, programs, reference(name), reuse(programs), description(name))


def _without_folders(program: Program) -> Program:
    turns = [
        replace(turn, tools=tuple(PurePosixPath(tool).name or tool for tool in turn.tools))
        if any("/" in tool for tool in turn.tools)
        else turn
        for turn in program.turns
    ]
    return replace(program, turns=turns)
