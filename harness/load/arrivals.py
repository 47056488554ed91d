"""Choose programs and draw their start times.

In: `--arrivals` as text, a rate in programs per second, an rng. Out: start times in seconds, drawn
once per (rate, seed) and used for every variant (common random numbers). Gaps are drawn at rate 1
and divided by the rate, which pairs the rates of one seed: at twice the rate, each program starts
at half the time, or with a daily profile when half as many are due. The first program starts one
gap after 0. Times are neither capped nor rounded. `day:PROFILE` has 24 relative hourly rates.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from servers.basics.errors import InvalidInput
from servers.basics.text import quoted
from traces.block_hashes import prefixes_elsewhere, turns_of_copy
from traces.program import Program

HOURS, HOUR_S, DAY_S = 24, 3600.0, 86_400.0
PROFILES = {
    "office": (
        *(5, 5, 5, 5, 5, 5, 10, 25, 60, 90, 100, 95),
        *(65, 85, 100, 100, 90, 65, 35, 25, 20, 15, 10, 5),
    )
}
"""Synthesised, not measured: office hours with a dip at noon, and a twentieth of the peak at night.
The busiest hour has 2.3 times the mean."""
NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?", re.ASCII)
MOST_BYTES = 4096
Hours = tuple[float, ...]


def parse_day(profile: str) -> Hours:
    """Return 24 rates. Raises InvalidInput."""
    if profile in PROFILES:
        return tuple(map(float, PROFILES[profile]))
    text = profile if "," in profile else _read(profile)
    numbers = re.split(r"[\s,]+", text.strip())
    for number in numbers:
        if not NUMBER.fullmatch(number):
            raise _refused(profile, f"{quoted(number)} is not a rate of 0 or more")
    hours = tuple(map(float, numbers))
    if len(hours) != HOURS:
        raise _refused(profile, f"has {len(hours)} rates; give one for each hour, from midnight")
    if not any(hours):
        raise _refused(profile, "all rates are 0; give one above 0")
    return hours


def _read(profile: str) -> str:
    path = Path(profile)
    if not path.is_file():
        names = ", ".join(PROFILES)
        raise _refused(profile, f"no such file; use {names}, or a file with 24 relative rates")
    with path.open("rb") as file:
        return file.read(MOST_BYTES).decode(errors="replace")


def _refused(profile: str, reason: str) -> InvalidInput:
    return InvalidInput(f"--arrivals day:{profile}: {reason}")


def in_numbers(profile: str) -> str:
    """Return the profile so that it needs no file."""
    if profile in PROFILES:
        return profile
    return ",".join(np.format_float_positional(rate, trim="-") for rate in parse_day(profile))


def at_hours(times_s: Iterable[float], hours: Hours) -> Iterator[float]:
    """Yield the times of arrivals at these rates for times of arrivals at their mean, whose gaps
    are in a time that passes faster in busy hours. Times begin at midnight."""
    busy = [hour for hour, rate in enumerate(hours) if rate]
    scale = DAY_S / sum(hours)
    ends = list(accumulate(hours[hour] * scale for hour in busy))
    for at_s in times_s:
        days, rest_s = divmod(at_s, DAY_S)
        place = min(bisect_right(ends, rest_s), len(busy) - 1)
        left_s = (ends[place] - rest_s) / (hours[busy[place]] * scale) * HOUR_S
        yield days * DAY_S + (busy[place] + 1) * HOUR_S - left_s


MIN_BURSTINESS = 0.01
"""Below this, most Gamma gaps underflow to zero."""
DAY = "day:"
SYNTAX = (
    "poisson, gamma:BURSTINESS (0.01 or more), constant, day:PROFILE, recorded, closed:N, agents "
    "or agents:SECONDS"
)


@dataclass(frozen=True, slots=True)
class Arrivals:
    kind: Literal["poisson", "gamma", "constant", "day", "recorded", "closed", "agents"]
    burstiness: float = 1.0
    """Shape of the Gamma gaps, as in vLLM's benchmark: their squared coefficient of variation is
    1 / burstiness. Below 1 arrivals are bursty, 1 is Poisson, above 1 they are more regular."""
    in_flight: int = 0
    """Closed loop: number of concurrent programs; the next starts when one ends."""
    think_s: float = 0.0
    """Mean think time of agents, from the end of a job to the start of the next one."""
    hours: Hours = ()
    """Relative rates of the hours of a day; empty for a constant rate."""

    @property
    def takes_rate(self) -> bool:
        return self.kind in ("poisson", "gamma", "constant", "day")

    @property
    def takes_agents(self) -> bool:
        """Whether the load is a number of agents in flight."""
        return self.kind == "agents"

    def on_the_clock(self, times_s: Iterable[float]) -> Iterable[float]:
        """Return the start times for times of a constant rate, which are divided by the rate."""
        return at_hours(times_s, self.hours) if self.hours else times_s

    @property
    def draws_order(self) -> bool:
        """Whether a seed draws the order of a fixed set of jobs, because there are no times to
        draw."""
        return self.kind in ("closed", "constant")

    def draw(
        self, programs: Sequence[Program], rate: float | None, seed: int
    ) -> tuple[tuple[float, ...], int | None]:
        """Return the start of each root program in seconds, and the limit of programs in flight.

        In a closed loop all may start at 0, within the limit. In an open loop the limit is None.
        """
        n = len(roots(programs))
        if self.kind == "closed":
            return (0.0,) * n, self.in_flight
        if self.kind == "recorded":
            return recorded_starts(programs), None
        if rate is None:
            raise InvalidInput(f"--arrivals {self.kind}: give a rate with --jps")
        return drawn_starts(self, rate, n, rng_for(seed, "arrivals")), None


def parse_arrivals(text: str) -> Arrivals:
    shape = re.fullmatch(r"gamma:(\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})", text, re.ASCII)
    if shape and float(shape[1]) >= MIN_BURSTINESS:
        return Arrivals("gamma", burstiness=float(shape[1]))
    closed = re.fullmatch(r"closed:(\d{1,9})", text, re.ASCII)
    if closed and int(closed[1]) > 0:
        return Arrivals("closed", in_flight=int(closed[1]))
    agents = re.fullmatch(r"agents:(\d{1,9}(?:\.\d{1,6})?)", text, re.ASCII)
    if agents:
        return Arrivals("agents", think_s=float(agents[1]))
    if text.startswith(DAY):
        return Arrivals("day", hours=parse_day(text.removeprefix(DAY)))
    for kind in ("poisson", "constant", "recorded", "agents"):
        if text == kind:
            return Arrivals(kind)
    raise InvalidInput(f"--arrivals {quoted(text)}: use {SYNTAX}")


def without_file(text: str) -> str:
    """Return arrivals as text that names no file."""
    return DAY + in_numbers(text.removeprefix(DAY)) if text.startswith(DAY) else text


def rng_for(seed: int, purpose: str) -> Generator:
    """Return an independent stream for each purpose, so that draws for one do not shift another."""
    return Generator(PCG64(SeedSequence(seed, spawn_key=tuple(purpose.encode()))))


def drawn_starts(arrivals: Arrivals, rate: float, n: int, rng: Generator) -> tuple[float, ...]:
    """Return n ascending start times in seconds: sums of unit-rate gaps, divided by the rate."""
    return tuple(arrivals.on_the_clock((np.cumsum(unit_gaps(arrivals, n, rng)) / rate).tolist()))


def unit_gaps(arrivals: Arrivals, n: int, rng: Generator) -> NDArray[np.float64]:
    """Return n gaps with mean 1."""
    if arrivals.kind == "constant":
        return np.ones(n)
    gaps: NDArray[np.float64] = rng.standard_gamma(arrivals.burstiness, n) / arrivals.burstiness
    return gaps


def recorded_starts(programs: Sequence[Program]) -> tuple[float, ...]:
    """Return the recorded start times of the root programs, in seconds and in their order."""
    starts = []
    for program in roots(programs):
        if program.recorded_start_s is None:
            raise InvalidInput(
                f"--arrivals recorded: program {program.id} has no recorded start "
                f"({program.source or 'no source'}); use poisson, or --programs at most the number "
                "of programs recorded"
            )
        starts.append(program.recorded_start_s)
    return tuple(starts)


def roots(programs: Sequence[Program]) -> list[Program]:
    """Return the programs that are not sub-agents. A sub-agent starts when its parent forks it."""
    return [program for program in programs if program.fork is None]


def choose_programs(programs: Sequence[Program], n: int) -> list[Program]:
    """Return the first n roots in order, each with its sub-agents. If there are fewer, the list is
    repeated with new ids (`id#2`). A repeated program has no recorded start."""
    if n < 1:
        raise InvalidInput(f"--programs {n}: must be at least 1")
    if not roots(programs):
        raise InvalidInput("no programs to run: the traces contain only sub-agents")
    root_of = root_ids(programs)
    used_ids = {program.id for program in programs}
    repeats = n > len(roots(programs))
    elsewhere = prefixes_elsewhere(programs, root_of) if repeats else {}
    chosen: list[Program] = []
    copy = 1
    while n > 0:
        batch = {program.id for program in roots(programs)[:n]}
        jobs = [program for program in programs if root_of[program.id] in batch]
        if chosen:
            # Ids of all programs up to this copy are in use, but some may be free of only a few.
            copy = _free_copy(jobs, used_ids, copy + 1 if len(jobs) == len(programs) else 2)
            used_ids.update(f"{program.id}#{copy}" for program in jobs)
            jobs = [copy_of(program, copy, elsewhere) for program in jobs]
        chosen += jobs
        n -= len(batch)
    return chosen


def root_ids(programs: Sequence[Program]) -> dict[str, str]:
    """Return the root of each program's job, by program id."""
    parents = {program.id: program.fork.program_id for program in programs if program.fork}
    root_of = {program.id: program.id for program in programs if program.fork is None}
    for start in parents:
        path = [start]
        while path[-1] not in root_of:
            parent = parents.get(path[-1])
            if parent is None or parent in path:
                raise InvalidInput(
                    f"sub-agent {start} has no parent among the programs of the trace"
                )
            path.append(parent)
        root_of.update(dict.fromkeys(path, root_of[path[-1]]))
    return root_of


def _free_copy(programs: Sequence[Program], used_ids: set[str], first: int) -> int:
    """Return the number, from `first` on, of a copy in which all ids are unique."""
    while any(f"{program.id}#{first}" in used_ids for program in programs):
        first += 1
    return first


def copy_of(program: Program, k: int, elsewhere: Mapping[str, Mapping[str, int]]) -> Program:
    """Return the k-th copy of a program. It belongs to another job, so it shares with the original
    only the prefixes that other jobs also have (`prefixes_elsewhere`)."""
    suffix = f"#{k}"
    return replace(
        program,
        id=program.id + suffix,
        turns=turns_of_copy(program, elsewhere.get(program.id), suffix),
        recorded_start_s=None,
        fork=program.fork and replace(program.fork, program_id=program.fork.program_id + suffix),
    )
