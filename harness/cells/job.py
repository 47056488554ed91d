"""The input of an engine for one cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.load.agents import AgentJobs
from harness.load.background import Background
from harness.load.scenario import ScenarioJobs
from harness.load.stream import JobStream
from servers.records.done import Times
from servers.records.settings import HorizonRecord
from servers.variants import Variant
from traces import Program

if TYPE_CHECKING:
    from harness.load.agent_plan import AgentPlan


class Stream(NamedTuple):
    """Jobs that arrive, or that agents start, until a steady state or all jobs that arrive within a
    horizon have been measured."""

    jobs: JobStream | AgentJobs
    idle: Times
    """Times on an idle machine."""
    horizon: HorizonRecord | None = None
    """For how long jobs arrive; None: until a steady state has been measured."""


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

    def background_arrivals(self) -> Iterable[tuple[Program, int]]:
        """Return the background requests with their times in ps; none without a background."""
        return () if self.background is None else self.background.arrivals(self.seed)
