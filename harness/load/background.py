"""Reads the single requests that a sweep serves alongside its jobs (`--background FILE@RATE`).

In: the option, and a file of requests without sessions. Out: a `Background`, whose requests arrive
as a Poisson process with a separate random stream, so that a seed has the same jobs with and
without it, and all variants and rates have the same background. Each is a program of one turn.
Requests keep the order of their file, in which neighbours share prefixes, starting from a request
that the seed draws; after the last one they are repeated with new ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from pathlib import Path

import traces
from harness.load.arrivals import Arrivals, copy_of, rng_for
from harness.load.rates import MAX_RATE, MIN_RATE, NUMBER
from harness.load.settings import Load, Overlong
from harness.load.stream import arrival_times
from harness.load.workload import Longest, Workload, leave_out_overlong
from servers.basics.clock import PS_PER_S
from servers.basics.errors import InvalidInput, NoTraceRead
from servers.basics.text import brief, one_line
from servers.records.settings import BackgroundRecord, LeftOutProgram
from traces import Note, Program
from traces.block_hashes import prefixes_elsewhere
from traces.columns import OPTION as COLUMNS
from traces.merge import renamed

PREFIX = "background/"
"""The ids of requests, and of the prefixes that they share, begin with this."""
EXAMPLE = "give a file and requests per second, such as requests.jsonl@2"


@dataclass(frozen=True, slots=True)
class Background:
    name: str
    """Name of the file."""
    requests: tuple[Program, ...]
    """Programs of one turn, in the order of the file."""
    requests_per_s: float
    trace_sha256: str
    left_out: tuple[LeftOutProgram, ...] = ()
    """Requests that exceed the longest context of the machine."""
    rejected_files: tuple[Note, ...] = ()
    repairs: tuple[Note, ...] = ()

    def record(self) -> BackgroundRecord:
        return BackgroundRecord(
            name=self.name,
            requests_per_s=self.requests_per_s,
            requests=len(self.requests),
            trace_sha256=self.trace_sha256,
            left_out=len(self.left_out),
        )

    def describe(self) -> str:
        return (
            f"background: {self.requests_per_s:g} requests/s of the {len(self.requests):,} in "
            f"{self.name}, alongside the jobs"
        )

    def arrivals(self, seed: int) -> Iterator[tuple[Program, int]]:
        """Yield requests and their arrival times in ps, endlessly."""
        rng = rng_for(seed, "background")
        first = int(rng.integers(len(self.requests)))
        times_s = arrival_times(Arrivals("poisson"), self.requests_per_s, rng)
        for request, at_s in zip(self._repeated(first), times_s, strict=False):
            yield request, round(at_s * PS_PER_S)

    def _repeated(self, first: int) -> Iterator[Program]:
        order = (*self.requests[first:], *self.requests[:first])
        yield from order
        ids = {request.id: request.id for request in order}
        elsewhere = prefixes_elsewhere(order, ids)
        for k in count(2):
            if not any(f"{id}#{k}" in ids for id in ids):
                yield from (copy_of(request, k, elsewhere) for request in order)


def load_background(load: Load, longest: Longest, *, messages: bool) -> Background | None:
    """Read the file of `--background`; None without it. `messages` keeps texts. Raises
    InvalidInput."""
    option, columns = load.background, load.background_columns
    if option is None:
        if columns is not None:
            raise InvalidInput("--background-columns: needs --background FILE@RATE")
        return None
    file, requests_per_s = parse_background(option)
    try:
        loaded = traces.read_traces([file], messages=messages, columns=columns)
    except NoTraceRead as error:
        reason = str(error).replace(COLUMNS, "--background-columns")
        raise InvalidInput(f"--background {reason}") from None
    except InvalidInput as error:
        raise InvalidInput(f"--background {error}") from None
    if loaded.is_private:
        raise InvalidInput(
            "--background: sessions of a command-line agent are jobs; give them with --traces"
        )
    _refuse_sessions(file, loaded.programs)
    fitting, left_out = leave_out_overlong(loaded.programs, longest)
    if left_out and (load.overlong is Overlong.REFUSE or not fitting):
        raise InvalidInput(f"--background {file}: {left_out[0].reason}; {longest.remedy}")
    return Background(
        one_line(Path(file).name),
        tuple(map(_request, fitting)),
        requests_per_s,
        loaded.sha256,
        left_out,
        loaded.rejections,
        loaded.repairs,
    )


def parse_background(option: str) -> tuple[str, float]:
    """Return the file and the rate in requests per second. The file may contain @."""
    file, at, rate = option.rpartition("@")
    if not at or not file or not rate:
        raise InvalidInput(f"--background {brief(option)}: {EXAMPLE}")
    number = NUMBER.fullmatch(rate)
    if number is None or len((number[1] or "").lstrip("+-0")) > 2:
        raise InvalidInput(
            f"--background {brief(option)}: {brief(rate)} is not a positive number; {EXAMPLE}"
        )
    if not MIN_RATE <= Fraction(rate) <= MAX_RATE:
        raise InvalidInput(
            f"--background {brief(option)}: the rate {brief(rate)} is not within 0.000001 to "
            "1,000,000 requests per second"
        )
    return file, float(rate)


def refuse_same_ids(workload: Workload) -> None:
    """Raise InvalidInput if a job has the id of a background request."""
    for program in workload.programs:
        if program.id.startswith(PREFIX):
            raise InvalidInput(
                f"program {program.id}: ids that begin with {PREFIX} are reserved for"
                " --background; rename it"
            )


def _refuse_sessions(file: str, programs: Iterable[Program]) -> None:
    for program in programs:
        if len(program.turns) > 1 or program.fork is not None:
            has = f"{len(program.turns)} turns" if program.fork is None else "a parent"
            raise InvalidInput(
                f"--background {one_line(file)}: program {program.id} has {has}, and background "
                "requests are single turns without sessions; run it as jobs with --traces, or keep "
                f"only first turns: bench traces convert {one_line(file)} --max-turns 1 "
                "--out FIRST.jsonl"
            )


def _request(program: Program) -> Program:
    """Return the request with an id that no job has. It shares prefixes with requests only."""

    def new(id: str) -> str:
        return f"{PREFIX}{id}"

    return renamed(program, new, new)
