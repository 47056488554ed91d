"""Run one cell: pass its programs and arrivals to the engine, and record its turns and events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from msgspec import UNSET

from harness.cells.folder import CellFolder
from harness.cells.job import Job, Stream, TurnTimes
from harness.cells.workers import Tick
from harness.load.agents import AgentJobs
from harness.load.arrivals import roots
from harness.load.scenario import ScenarioJobs
from harness.load.settings import Keep
from harness.load.stream import DrawnJobs, JobStream, in_drawn_order
from harness.sweep.plan import Cell, SweepPlan
from reports.metrics.cell_numbers import compute_numbers, encode_numbers
from reports.metrics.measure import Recorded
from reports.metrics.pins import is_of_pin
from reports.run_folder.read import CellRun
from reports.run_folder.turns import TurnColumns
from servers.basics.errors import CellFailed, InvalidRunFolder
from servers.policies.fcfs import Fcfs
from servers.records.done import Times
from servers.records.turns import EventRecord, TurnRecord
from servers.variants import variant

TICK_INTERVAL_S = 0.5
IDLE_JOBS = 200
"""Jobs that run alone, or all of the workload if it has fewer."""
MAX_IDLE_JOBS = 10_000
"""Largest number of jobs that a stream may have in the system of an idle machine."""


@dataclass(slots=True)
class Work:
    """What the cells of a plan share in one process."""

    plan: SweepPlan
    folder: Path
    idle: dict[int, Times] = field(default_factory=dict)
    """Times on an idle machine by seed, of the seeds that this process needed so far."""
    keep: Keep = Keep.TURNS
    taken: list[Path] = field(default_factory=list)
    """The other run folder of each cell that was copied, until `say_taken` says so."""
    _drawn: dict[int, DrawnJobs] = field(default_factory=dict)

    def drawn_jobs(self, seed: int) -> DrawnJobs:
        if seed not in self._drawn:
            self._drawn[seed] = DrawnJobs(self.plan.workload, seed)
        return self._drawn[seed]

    def keeps_turns(self, cell: Cell) -> bool:
        """Return whether the cell's turns are kept at least until the end of the sweep."""
        if not self.plan.engine.kind.is_virtual:
            return True  # a measurement cannot be repeated
        if self.keep is Keep.SHOWN:
            return cell.seed == self.plan.seeds[0]
        return self.keep is Keep.TURNS

    def idle_times(self, seed: int, folder: Path) -> Times:
        if seed not in self.idle:
            self.idle[seed] = idle_times(self.plan, seed, folder)
        return self.idle[seed]


@dataclass(frozen=True, slots=True)
class PlannedCell:
    plan: str
    """Name of its plan."""
    cell: Cell

    @property
    def name(self) -> str:
        """Path of its folder in the folder of all plans."""
        return str(Path(self.plan) / self.cell.name)


RunCell = Callable[[Work, Cell, Tick], None]


def run_planned(run: RunCell, work: Mapping[str, Work], cell: PlannedCell, tick: Tick) -> None:
    run(work[cell.plan], cell.cell, tick)


def run_cell(work: Work, cell: Cell, tick: Tick) -> None:
    plan, config = work.plan, work.plan.cell_record(cell)
    is_virtual = plan.engine.kind.is_virtual
    memory = _Memory() if is_virtual else None
    turns, tick_at_s = 0, time.monotonic() + TICK_INTERVAL_S

    def on_turn(record: TurnRecord) -> None:
        nonlocal turns, tick_at_s
        out.turns.append(record)
        if memory is None:  # a measurement is not repeatable, so keep each turn
            out.turns.flush()
        else:
            memory.turns.append(record)
        turns += record.background is UNSET
        if time.monotonic() >= tick_at_s:
            tick(turns, "")
            tick_at_s = time.monotonic() + TICK_INTERVAL_S

    def on_event(event: EventRecord) -> None:
        out.events.append(event)
        if memory is not None:
            memory.event(event)

    path, keeps = work.folder / cell.name, work.keeps_turns(cell)
    with CellFolder(path, config, compressed=is_virtual, keeps_lines=keeps) as out:
        job = replace(
            _job(work, cell, out.path),
            on_turn=on_turn,
            on_event=on_event,
            on_stage=lambda stage: tick(turns, stage),
        )
        done = plan.engine.run(job)
        out.finish(done, None if memory is None else memory.numbers(CellRun(path, config, done)))
    tick(turns, "")  # the number of turns of agents is unknown until then


class _Memory:
    def __init__(self) -> None:
        self.turns = TurnColumns()
        self._pin_events: list[EventRecord] = []
        self._has_events = False

    def event(self, event: EventRecord) -> None:
        self._has_events = True
        if is_of_pin(event):
            self._pin_events.append(event)

    def numbers(self, cell: CellRun) -> bytes:
        pin_events = self._pin_events if self._has_events else None
        try:
            recorded = Recorded(*self.turns.read(cell), lambda: pin_events)
            return encode_numbers(compute_numbers(cell, recorded))
        except InvalidRunFolder as error:
            raise CellFailed(str(error)) from None


def _job(work: Work, cell: Cell, folder: Path) -> Job:
    plan = work.plan
    job = Job(
        name=cell.name,
        variant=plan.variant(cell.variant),
        seed=cell.seed,
        programs=(),
        starts_s=None,
        in_flight=None,
        folder=folder,
        agents=plan.agents,
        background=plan.background,
    )
    if plan.scenario is not None and cell.amount is not None:
        scenario_jobs = ScenarioJobs(work.drawn_jobs(cell.seed), int(cell.amount), plan.scenario)
        return replace(job, scenario_jobs=scenario_jobs)
    if plan.steady and cell.amount is not None:
        drawn, idle = work.drawn_jobs(cell.seed), work.idle_times(cell.seed, folder)
        if plan.has_agents:
            agents = AgentJobs(drawn, int(cell.amount), plan.arrivals.think_s, idle.jct.mean)
            return replace(job, stream=Stream(agents, idle))
        jobs = JobStream(drawn, plan.arrivals, cell.amount)
        if (idle_jobs := cell.amount * idle.jct.mean) > MAX_IDLE_JOBS:
            raise CellFailed(
                f"--jps {cell.amount:g}: {idle_jobs:,.0f} jobs would be in the system even if none "
                f"waited, at most {MAX_IDLE_JOBS:,} are supported; lower the rate"
            )
        return replace(job, stream=Stream(jobs, idle, plan.horizon))
    programs = plan.workload.programs
    if plan.arrivals.draws_order:
        programs = in_drawn_order(programs, cell.seed)
    starts_s, in_flight = plan.arrivals.draw(programs, cell.amount, cell.seed)
    if in_flight is not None:
        return replace(job, programs=programs, in_flight=in_flight)
    return replace(job, programs=programs, starts_s=starts_s)


def idle_times(plan: SweepPlan, seed: int, folder: Path) -> Times:
    """Return the times on an idle machine, on which the first jobs of a seed run one after another.

    The mean JCT sets the length of the windows of all cells with that seed. Engine and machine are
    the plan's, without offload; the policy is fcfs."""
    starts_s: dict[str, float] = {}
    ends_s: dict[str, float] = {}
    turns = TurnTimes()

    def on_turn(record: TurnRecord) -> None:
        starts_s.setdefault(record.job_id, record.scheduled_at_s)
        if record.finished_at_s is not None:
            ends_s[record.job_id] = max(record.finished_at_s, ends_s.get(record.job_id, 0.0))
        turns.add(record, 0)

    workload = plan.workload
    jobs = IDLE_JOBS
    if workload.fresh is None:
        jobs = min(jobs, len(roots(workload.programs)))
    fitting = (members for members in DrawnJobs(workload, seed) if members is not None)
    job = Job(
        name="idle",
        variant=variant(Fcfs.name),
        seed=seed,
        programs=[program for members in islice(fitting, jobs) for program in members],
        starts_s=None,
        in_flight=1,
        folder=folder,
        on_turn=on_turn,
    )
    plan.engine.run(job)
    jct_s = [end_s - starts_s[job_id] for job_id, end_s in ends_s.items()]
    return turns.with_jcts(jct_s, 0, 1)
