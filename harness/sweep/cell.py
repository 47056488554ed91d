"""Run one cell: pass its programs and arrivals to the engine, and record its turns and events."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from harness.cells.folder import CellFolder
from harness.cells.job import Job
from harness.cells.workers import Tick
from harness.sweep.plan import Cell, SweepPlan
from servers.records import TurnRecord

TICK_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """The data that all cells of a sweep share."""

    plan: SweepPlan
    folder: Path


def run_cell(work: Work, cell: Cell, tick: Tick) -> None:
    plan = work.plan
    programs = plan.workload.programs
    starts_s, in_flight = plan.arrivals.draw(programs, cell.jps, cell.seed)
    turns, tick_at_s = 0, time.monotonic() + TICK_INTERVAL_S

    def on_turn(record: TurnRecord) -> None:
        nonlocal turns, tick_at_s
        out.turns.append(record)
        if not plan.engine.parallel:  # a measurement is not repeatable, so keep each turn
            out.turns.flush()
        turns += 1
        if time.monotonic() >= tick_at_s:
            tick(turns, "")
            tick_at_s = time.monotonic() + TICK_INTERVAL_S

    with CellFolder(work.folder / cell.name, plan.cell_json(cell)) as out:
        job = Job(
            name=cell.name,
            variant=plan.variant(cell.variant),
            seed=cell.seed,
            programs=programs,
            starts_s=starts_s if in_flight is None else None,
            in_flight=in_flight,
            folder=out.path,
            agents=plan.agents,
        )
        done = plan.engine.run(job, on_turn, out.events.append, lambda stage: tick(turns, stage))
        out.finish(done)
    tick(turns, "")  # the number of turns of agents is unknown until then
