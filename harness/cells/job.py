"""The input of an engine for one cell, and summaries of its job completion times and latencies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.load.agents import AgentJobs
from harness.load.background import Background
from harness.load.scenario import ScenarioJobs
from harness.load.stream import JobStream
from servers.records.done import PERCENTS, Summary, Times
from servers.records.settings import HorizonRecord
from servers.variants import Variant
from traces import Program

if TYPE_CHECKING:
    from harness.load.agent_plan import AgentPlan
import math
from array import array

import numpy as np
from numpy.typing import NDArray

from servers.records.turns import EventRecord, TurnRecord


def summary(times_s: Sequence[float] | NDArray[np.float64]) -> Summary:
    """Summarise at least one time. Percentiles are linear between the two nearest ranks."""
    points = np.percentile(times_s, PERCENTS).tolist()
    return Summary(math.fsum(times_s) / len(times_s), tuple(points))


class TurnTimes:
    """The latencies of turns that finished."""

    def __init__(self) -> None:
        self._job = array("q")
        self._is_first = array("b")
        self._ttft_s, self._e2e_s, self._output_tokens = array("d"), array("d"), array("q")

    def add(self, record: TurnRecord, job: int) -> None:
        first_s, end_s, tokens = (
            record.first_token_at_s,
            record.finished_at_s,
            record.output_tokens,
        )
        if record.error is not None or first_s is None or end_s is None or not tokens:
            return
        self._job.append(job)
        self._is_first.append(record.turn == 0 and record.program_id == record.job_id)
        self._ttft_s.append(first_s - record.sent_at_s)
        self._e2e_s.append(end_s - record.sent_at_s)
        self._output_tokens.append(tokens)

    def with_jcts(self, jct_s: Sequence[float], first_job: int, end_job: int) -> Times:
        """Return these JCTs (at least one) with the latencies of the turns of the
        jobs from `first_job` to `end_job` − 1."""
        job = np.asarray(self._job)
        inside = (job >= first_job) & (job < end_job)
        ttft_s, e2e_s = np.asarray(self._ttft_s)[inside], np.asarray(self._e2e_s)[inside]
        tokens = np.asarray(self._output_tokens)[inside]
        many = tokens > 1
        return Times(
            jct=summary(jct_s),
            ttft=_summary(ttft_s),
            first_ttft=_summary(ttft_s[np.asarray(self._is_first)[inside] == 1]),
            tpot=_summary((e2e_s - ttft_s)[many] / (tokens[many] - 1)),
            per_token=_summary(e2e_s / tokens),
        )


def _summary(times_s: NDArray[np.float64]) -> Summary | None:
    return summary(times_s) if len(times_s) else None


class Stream(NamedTuple):
    """Jobs that arrive, or that agents start, until a steady state or all jobs that arrive within a
    horizon have been measured."""

    jobs: JobStream | AgentJobs
    idle: Times
    """Times on an idle machine."""
    horizon: HorizonRecord | None = None
    """For how long jobs arrive; None: until a steady state has been measured."""


def ignored(_: object) -> None:
    """Take no notice of what a cell reports."""


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    variant: Variant
    seed: int
    programs: Sequence[Program]
    """Empty if there is a stream."""
    starts_s: Sequence[float] | None
    """None in a closed loop, and with a stream."""
    in_flight: int | None
    folder: Path
    """An existing folder for the engine's own files."""
    agents: AgentPlan | None = None
    """Real agents to run; None for a replay."""
    stream: Stream | None = None
    """None for a fixed set of programs."""
    scenario_jobs: ScenarioJobs | None = None
    """Of a scenario; None without one."""
    background: Background | None = None
    """Requests that arrive until the jobs have ended."""
    on_turn: Callable[[TurnRecord], None] = ignored
    """Called when a turn ends."""
    on_event: Callable[[EventRecord], None] = ignored
    on_stage: Callable[[str], None] = ignored
    """Called with a description of what the cell does."""

    def background_arrivals(self) -> Iterable[tuple[Program, int]]:
        """Return the background requests with their times in ps; none without a background."""
        return () if self.background is None else self.background.arrivals(self.seed)
