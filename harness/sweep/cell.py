"""Run one cell: pass its programs and arrivals to the engine, and record its turns and events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import UNSET

from harness.cells.folder import CellFolder
from harness.cells.job import Job, Stream
from harness.cells.workers import Tick
from harness.load.stream import JobStream, in_drawn_order
from harness.sweep.idle import idle_jct
from harness.sweep.plan import Cell, SweepPlan
from servers.basics.errors import CellFailed
from servers.records.done import Jct
from servers.records.turns import TurnRecord

TICK_INTERVAL_S = 0.5
MAX_IDLE_JOBS = 10_000
"""Largest number of jobs that a stream may have in the system of an idle machine."""


@dataclass(slots=True)
class Work:
    """What the cells of a plan share in one process."""

    plan: SweepPlan
    folder: Path
    idle: dict[int, Jct] = field(default_factory=dict)
    """JCT on an idle machine by seed, of the seeds that this process needed so far."""

    def idle_jct(self, seed: int, folder: Path) -> Jct:
        if seed not in self.idle:
            self.idle[seed] = idle_jct(self.plan, seed, folder)
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
    plan = work.plan
    turns, tick_at_s = 0, time.monotonic() + TICK_INTERVAL_S

    def on_turn(record: TurnRecord) -> None:
        nonlocal turns, tick_at_s
        out.turns.append(record)
        if not plan.engine.kind.is_virtual:  # a measurement is not repeatable, so keep each turn
            out.turns.flush()
        turns += record.background is UNSET
        if time.monotonic() >= tick_at_s:
            tick(turns, "")
            tick_at_s = time.monotonic() + TICK_INTERVAL_S

    with CellFolder(work.folder / cell.name, plan.cell_record(cell)) as out:
        job = _job(work, cell, out.path)
        done = plan.engine.run(job, on_turn, out.events.append, lambda stage: tick(turns, stage))
        out.finish(done)
    tick(turns, "")  # the number of turns of agents is unknown until then


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
    if plan.steady and cell.jps is not None:
        jobs = JobStream(plan.workload, plan.arrivals, cell.jps, cell.seed)
        idle = work.idle_jct(cell.seed, folder)
        if (idle_jobs := cell.jps * idle.mean) > MAX_IDLE_JOBS:
            raise CellFailed(
                f"--jps {cell.jps:g}: {idle_jobs:,.0f} jobs would be in the system even if none "
                f"waited, at most {MAX_IDLE_JOBS:,} are supported; lower the rate"
            )
        return replace(job, stream=Stream(jobs, idle))
    programs = plan.workload.programs
    if plan.arrivals.draws_order:
        programs = in_drawn_order(programs, cell.seed)
    starts_s, in_flight = plan.arrivals.draw(programs, cell.jps, cell.seed)
    if in_flight is not None:
        return replace(job, programs=programs, in_flight=in_flight)
    return replace(job, programs=programs, starts_s=starts_s)
