"""One cell: its programs and arrivals handed to the engine, its turns and events kept."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from harness.cells.folder import CellFolder
from harness.cells.job import Job
from harness.cells.workers import Tick
from harness.sweep.plan import Cell, Question

TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """What all cells of a sweep share."""

    question: Question
    folder: Path


def run_cell(work: Work, cell: Cell, tick: Tick) -> None:
    question = work.question
    programs = question.workload.programs
    starts_s, in_flight = question.arrivals.draw(programs, cell.jps, cell.seed)
    turns, tick_at_s = 0, time.monotonic() + TICK_S

    def on_turn(line: dict[str, object]) -> None:
        nonlocal turns, tick_at_s
        out.turns.append(line)
        if not question.engine.side_by_side:  # measured: it cannot be had again
            out.turns.flush()
        turns += 1
        if time.monotonic() >= tick_at_s:
            tick(turns, "")
            tick_at_s = time.monotonic() + TICK_S

    with CellFolder(work.folder / cell.name, question.cell_json(cell)) as out:
        job = Job(
            name=cell.name,
            variant=question.variant(cell.variant),
            seed=cell.seed,
            programs=programs,
            starts_s=starts_s if in_flight is None else None,
            in_flight=in_flight,
            folder=out.path,
            agents=question.agents,
        )
        done = question.engine.run(
            job, on_turn, out.events.append, lambda stage: tick(turns, stage)
        )
        out.finish(done)
    tick(turns, "")  # of agents nobody knew how many there would be
