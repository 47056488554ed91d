"""Draws an endless stream of jobs from a seed.

In: a workload, an arrival process, a rate, a seed. Out: jobs, each with its programs and its
arrival time. Jobs are numbered by arrival. All variants and all rates of a seed have the same jobs,
and the arrival times of two rates differ only by a factor (common random numbers). Recorded jobs
are repeated in new random orders, each time with new ids; a recipe draws new programs, in blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np
from numpy.random import Generator

from harness.load.arrivals import Arrivals, copy_of, rng_for, root_ids, unit_gaps
from harness.load.workload import FreshPrograms, Workload, leave_out_overlong
from servers.basics.clock import PS_PER_S
from servers.basics.errors import CellFailed
from traces import Program, synthesize
from traces.block_hashes import prefixes_elsewhere

BLOCK = 100
"""Number of programs drawn from a recipe at once. Draws are stratified within a block, so a hundred
programs already have nearly the recipe's moments."""
GAPS = 1024
"""Number of gaps between arrivals drawn at once."""

Members = tuple[Program, ...]
"""The programs of a job: the root, followed by its sub-agents."""


@dataclass(frozen=True, slots=True)
class ArrivingJob:
    index: int
    """Position in the order of arrival, from 0."""
    members: Members
    at_ps: int
    left_out: int
    """Number of earlier programs that were drawn and left out, because they do not fit."""


class DrawnJobs:
    """The jobs of a seed in order of arrival, endlessly, which are drawn once for all cells of a
    process; None for a drawn job that exceeds the machine's longest context."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload, self.seed = workload, seed
        self._drawn: list[Members | None] = []
        self._further = self._draw()

    def __iter__(self) -> Iterator[Members | None]:
        for index in count():
            if index == len(self._drawn):
                self._drawn.append(self._next())
            yield self._drawn[index]

    def fitting(self) -> Iterator[tuple[int, Members, int]]:
        """Yield the jobs that fit, each with its number and how many drawn before it do not."""
        index = left_out = 0
        for members in self:
            if members is None:
                left_out += 1
            else:
                yield index, members, left_out
                index += 1

    def _next(self) -> Members | None:
        try:
            return next(self._further)
        except CellFailed:  # which ends the iterator
            self._further = islice(self._draw(), len(self._drawn), None)
            raise

    def _draw(self) -> Iterator[Members | None]:
        rng = rng_for(self.seed, "programs")
        if self.workload.fresh is None:
            return _repeated(self.workload.programs, rng)
        return _from_recipe(self.workload.fresh, rng)


@dataclass(frozen=True, slots=True)
class JobStream:
    """The jobs of one cell. Each iteration yields the same jobs."""

    drawn: DrawnJobs
    arrivals: Arrivals
    jobs_per_s: float

    def __iter__(self) -> Iterator[ArrivingJob]:
        rng = rng_for(self.drawn.seed, "arrivals")
        times_s = arrival_times(self.arrivals, self.jobs_per_s, rng)
        for index, members, left_out in self.drawn.fitting():
            yield ArrivingJob(index, members, round(next(times_s) * PS_PER_S), left_out)


def with_burst(jobs: Iterable[ArrivingJob], burst: int) -> Iterator[ArrivingJob]:
    """Yield the jobs, with the first `burst` jobs at time 0 and the gaps between the others
    unchanged: as if the server had started when the last job of the burst arrived."""
    late: list[ArrivingJob] = []
    for job in jobs:
        if job.index < burst:
            late.append(job)
        if job.index == burst - 1:
            yield from (replace(each, at_ps=0) for each in late)
        elif job.index >= burst:
            yield replace(job, at_ps=job.at_ps - (late[-1].at_ps if late else 0))


def arrival_times(arrivals: Arrivals, per_s: float, rng: Generator) -> Iterator[float]:
    """Yield ascending times in seconds: sums of unit-rate gaps, divided by the rate."""
    end = 0.0
    while True:
        sums = end + np.cumsum(unit_gaps(arrivals, GAPS, rng))
        end = float(sums[-1])
        yield from arrivals.on_the_clock((sums / per_s).tolist())


def _from_recipe(fresh: FreshPrograms, rng: Generator) -> Iterator[Members | None]:
    for block in count():
        drawn = synthesize(fresh.recipe, BLOCK, rng)
        too_long = _too_long(drawn, fresh)
        jobs = _by_job(drawn, root_ids(drawn))
        for number, job in enumerate(jobs, block * BLOCK):
            fits = job[0].id not in too_long
            yield _renamed(job, f"{fresh.recipe}-{number}") if fits else None


def _renamed(job: Members, name: str) -> Members:
    """Return the job under another id, with which the ids of its sub-agents and of their shared
    prefixes begin."""
    old = job[0].id

    def new(id: str) -> str:
        begins = id == old or id.startswith((f"{old}:", f"{old}/"))
        return name + id.removeprefix(old) if begins else id

    return tuple(
        replace(
            program,
            id=new(program.id),
            prefix=program.prefix and replace(program.prefix, id=new(program.prefix.id)),
            fork=program.fork and replace(program.fork, program_id=new(program.fork.program_id)),
        )
        for program in job
    )


def _too_long(drawn: Sequence[Program], fresh: FreshPrograms) -> set[str]:
    _, left_out = leave_out_overlong(drawn, fresh.longest)
    if left_out and fresh.refuse:
        raise CellFailed(f"{left_out[0].reason}; {fresh.longest.remedy}, or use --overlong drop")
    return {program.program_id for program in left_out}


def in_drawn_order(programs: Sequence[Program], seed: int) -> tuple[Program, ...]:
    """Return the programs with their jobs in the order in which a stream of the seed begins.

    With arrivals that have no times to draw, seeds would else be copies of one replicate.
    """
    jobs = _shuffled(_by_job(programs, root_ids(programs)), rng_for(seed, "programs"))
    return tuple(program for job in jobs for program in job)


def are_alike(programs: Sequence[Program]) -> bool:
    """Return whether all jobs have the same content, so that their order changes nothing."""
    first, *others = map(_content, _by_job(programs, root_ids(programs)))
    return all(job == first for job in others)


def _content(job: Members) -> Members:
    """Return the job without names, times and texts."""
    return tuple(
        replace(
            program,
            turns=tuple(program.turns),
            recorded_start_s=None,
            source="",
            messages=(),
            prompt_messages=(),
        )
        for program in _renamed(job, "job")
    )


def _shuffled(jobs: Sequence[Members], rng: Generator) -> list[Members]:
    return [jobs[which] for which in rng.permutation(len(jobs)).tolist()]


def _repeated(programs: Sequence[Program], rng: Generator) -> Iterator[Members]:
    """Yield all jobs in a random order, then copies in another order, and so on."""
    root_of = root_ids(programs)
    jobs = _by_job(programs, root_of)
    yield from _shuffled(jobs, rng)
    elsewhere = prefixes_elsewhere(programs, root_of)
    for k in count(2):
        if any(f"{id}#{k}" in root_of for id in root_of):
            continue  # a recorded program has the id of a copy
        for job in _shuffled(jobs, rng):
            yield tuple(copy_of(program, k, elsewhere) for program in job)


def _by_job(programs: Sequence[Program], root_of: Mapping[str, str]) -> list[Members]:
    jobs: dict[str, list[Program]] = {p.id: [p] for p in programs if p.fork is None}
    for program in programs:
        if program.fork is not None:
            jobs[root_of[program.id]].append(program)
    return [tuple(job) for job in jobs.values()]
